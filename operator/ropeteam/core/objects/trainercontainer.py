"""The container `trainer` as the user wrote it: the template's, with the short form (spec.image, spec.command
...) merged in. Never raises.
"""

from __future__ import annotations

import copy
from typing import Any

from ropeteam.api.job import TrainingJobSpec
from ropeteam.api.rule import at
from ropeteam.core.objects.podparts import dict_at, dicts_at, list_at
from ropeteam_trainer.contract.config import TRAINER_CONTAINER


def position(containers: list[dict[str, Any]]) -> int | None:
    """Index of the container `trainer`; None: there is none."""
    names = [each.get("name") for each in containers]
    return names.index(TRAINER_CONTAINER) if TRAINER_CONTAINER in names else None


def merged(spec: TrainingJobSpec) -> dict[str, Any]:
    """A copy of the template's container `trainer`, or a new one, in which each field of the short form that
    is set wins. `command`, `args` and `env` are always there. Limits: spec.gpusPerWorker is not in
    `resources` yet."""
    containers = dicts_at({"containers": at(spec.template, "spec.containers")}, "containers")
    found = position(containers)
    container: dict[str, Any] = (
        {"name": TRAINER_CONTAINER} if found is None else copy.deepcopy(containers[found])
    )
    if spec.image is not None:
        container["image"] = spec.image
    if spec.working_dir is not None:
        container["workingDir"] = spec.working_dir
    container["command"] = [*(spec.command or list_at(container, "command"))]
    container["args"] = [*(spec.args or list_at(container, "args"))]
    container["env"] = _merged_env(spec, container)
    dict_at(container, "resources").update(copy.deepcopy(spec.resources or {}))
    return container


def _merged_env(spec: TrainingJobSpec, container: dict[str, Any]) -> list[Any]:
    """Variables of the template, then of the short form, which wins where both have a name. Later ones may
    refer to earlier ones (`$(NAME)`), so the order within each stays. Limit: a variable of the template
    cannot refer to one that the short form overrides: that comes later."""
    short_form = list(copy.deepcopy(spec.env or ()))
    named = {each.get("name") for each in short_form}
    return [each for each in dicts_at(container, "env") if each.get("name") not in named] + short_form

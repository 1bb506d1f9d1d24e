"""The installation's defaults for pods, applied where the job sets nothing. In place, total."""

from __future__ import annotations

import copy
from typing import Any

from ropeteam.api.defaults import JobDefaults


def apply(pod: dict[str, Any], defaults: JobDefaults) -> None:
    """Apply the defaults to a pod of ours: its metadata and spec are objects."""
    metadata, spec = pod["metadata"], pod["spec"]
    for name, values in (("labels", defaults.labels), ("annotations", defaults.annotations)):
        _underlay(metadata, name, values)
    _underlay(spec, "nodeSelector", defaults.node_selector)
    _append(spec, "tolerations", copy.deepcopy(list(defaults.tolerations)))
    _append(spec, "imagePullSecrets", [{"name": name} for name in defaults.image_pull_secrets])


def apply_to_worker(pod: dict[str, Any], trainer: dict[str, Any], defaults: JobDefaults) -> None:
    """Apply the defaults to a worker pod, also those of the container `trainer`, which is one of the
    pod's."""
    apply(pod, defaults)
    named = {each.get("name") for each in trainer["env"]}
    missing = [each for each in copy.deepcopy(defaults.env) if each.get("name") not in named]
    trainer["env"] = [*missing, *trainer["env"]]
    if defaults.priority_class_name:
        pod["spec"].setdefault("priorityClassName", defaults.priority_class_name)


def _underlay(parent: dict[str, Any], key: str, values: dict[str, str]) -> None:
    own = parent.get(key)
    if values:
        parent[key] = values | (own if isinstance(own, dict) else {})


def _append(parent: dict[str, Any], key: str, more: list[Any]) -> None:
    own = parent.get(key)
    own = own if isinstance(own, list) else []
    if more:
        parent[key] = [*own, *(each for each in more if each not in own)]

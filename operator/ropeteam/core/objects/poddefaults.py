"""The installation's defaults for pods (jobDefaults of the chart), added to a manifest in place where the job
sets nothing. Never raises.
"""

from __future__ import annotations

import copy
from typing import Any

from ropeteam.api.defaults import JobDefaults


def add_defaults(pod: dict[str, Any], defaults: JobDefaults) -> None:
    """Add the defaults of all pods to the manifest of a coordinator or worker. The pod's own labels,
    annotations and nodeSelector win; tolerations and pull secrets are added to its own."""
    metadata, spec = pod["metadata"], pod["spec"]
    for name, values in (("labels", defaults.labels), ("annotations", defaults.annotations)):
        _add_missing_keys(metadata, name, values)
    _add_missing_keys(spec, "nodeSelector", defaults.node_selector)
    _append_missing(spec, "tolerations", copy.deepcopy(list(defaults.tolerations)))
    _append_missing(spec, "imagePullSecrets", [{"name": name} for name in defaults.image_pull_secrets])


def add_worker_defaults(pod: dict[str, Any], trainer: dict[str, Any], defaults: JobDefaults) -> None:
    """Add the defaults of all pods, and those of workers: environment and priority class. `trainer`: the
    container of this name in `pod`, which has a list `env`."""
    add_defaults(pod, defaults)
    named = {each.get("name") for each in trainer["env"]}
    missing = [each for each in copy.deepcopy(defaults.env) if each.get("name") not in named]
    trainer["env"] = [*missing, *trainer["env"]]
    if defaults.priority_class_name:
        pod["spec"].setdefault("priorityClassName", defaults.priority_class_name)


def _add_missing_keys(parent: dict[str, Any], key: str, values: dict[str, str]) -> None:
    """Add entries of `values` to the object parent[key], where it does not have them."""
    own = parent.get(key)
    if values:
        parent[key] = values | (own if isinstance(own, dict) else {})


def _append_missing(parent: dict[str, Any], key: str, more: list[Any]) -> None:
    """Append entries of `more` to the list parent[key], where no equal one is in it."""
    own = parent.get(key)
    own = own if isinstance(own, list) else []
    if more:
        parent[key] = [*own, *(each for each in more if each not in own)]

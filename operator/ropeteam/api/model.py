"""The base of every API model: camelCase outside, snake_case inside, frozen, strict about unknown fields."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Self

from pydantic import AliasChoices, AliasGenerator, BaseModel, ConfigDict
from pydantic.alias_generators import to_camel

PREVIOUS_NAMES = {
    "handover_pending": "relieves",
    "start_time": "since",
    "consecutive_failures": "faults",
    "pod_uid": "podUid",
    "previous_pod_uid": "oldPodUid",
    "previous_pod_fenced": "oldPodGone",
    "replacement_time": "replacedAt",
    "previous": "former",
    "pod_spec_hash": "shape",
    "feature_level": "rung",
    "run_as_user": "user",
    "capabilities_dropped": "dropsCapabilities",
    "drain_start_time": "drainSince",
    "backoff_end_time": "restsUntil",
    "coordinator_unreachable_start_time": "coordinatorFaultSince",
    "observed_restarted_at": "restartedAt",
    "world": "epoch",
    "last_world": "lastEpoch",
    "not_charged": "free",
    "replacing": "lost",
    "recovery_milliseconds": "stages",
    "final": "settled",
    "last_incident": "lastFault",
}
"""Field of status to its name in objects that an earlier release has stored. Both names are read, with the
same meaning and values; only the new name is written."""


def api_name(field: str) -> str:
    """Name in JSON of a Python field: camelCase, with UID in capitals at the end."""
    return re.sub("Uid$", "UID", to_camel(field))


def _accepted_names(field: str) -> AliasChoices:
    """Names in JSON under which a field of status is read: its name now, then its previous one. If an object
    has both, the first wins."""
    return AliasChoices(api_name(field), *filter(None, [PREVIOUS_NAMES.get(field)]))


class ApiModel(BaseModel):
    """A structural piece of the API. Field docstrings become CRD descriptions."""

    model_config = ConfigDict(
        alias_generator=api_name,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
    )

    def to_json(self) -> dict[str, Any]:
        """The object in JSON, as Kubernetes stores it: camelCase, fields with None left out, defaults
        included."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Copy with some fields replaced, by Python name; values are not validated. Raises TypeError for an
        unknown field, which pydantic's own model_copy would ignore."""
        unknown = sorted({*(update or ())} - {*type(self).model_fields})
        if unknown:
            raise TypeError(f"{type(self).__name__} has no field {', '.join(unknown)}")
        return super().model_copy(update=update, deep=deep)


class StatusModel(ApiModel):
    """A piece of status. A newer operator may have written more: unknown fields are dropped, no error."""

    model_config = ConfigDict(
        extra="ignore",
        alias_generator=AliasGenerator(validation_alias=_accepted_names, serialization_alias=api_name),
    )

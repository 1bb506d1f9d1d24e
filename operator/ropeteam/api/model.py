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
"""Fields of status by what a stored object of an earlier release calls them. Both are read, with the same
meaning and values; the first status that is written has the new ones only."""


def api_name(field: str) -> str:
    """`field` as the API writes it: camelCase, and acronyms keep one case."""
    return re.sub("Uid$", "UID", to_camel(field))


def _names(field: str) -> AliasChoices:
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
        """As Kubernetes stores it: camelCase, nothing that is None."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Copy with some fields replaced. Raises TypeError for one that there is not: pydantic ignores it."""
        unknown = sorted({*(update or ())} - {*type(self).model_fields})
        if unknown:
            raise TypeError(f"{type(self).__name__} has no field {', '.join(unknown)}")
        return super().model_copy(update=update, deep=deep)


class StatusModel(ApiModel):
    """A piece of status. A newer operator may have written more: unknown fields are dropped, no error."""

    model_config = ConfigDict(
        extra="ignore",
        alias_generator=AliasGenerator(validation_alias=_names, serialization_alias=api_name),
    )

"""The base of every API model: camelCase outside, snake_case inside, frozen, strict about unknown fields."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict
from pydantic.alias_generators import to_camel


class ApiModel(BaseModel):
    """A structural piece of the API. Field docstrings become CRD descriptions."""

    model_config = ConfigDict(
        alias_generator=to_camel,
        populate_by_name=True,
        extra="forbid",
        frozen=True,
        use_attribute_docstrings=True,
    )

    def to_json(self) -> dict[str, Any]:
        """As Kubernetes stores it: camelCase, nothing that is None."""
        return self.model_dump(mode="json", by_alias=True, exclude_none=True)


class StatusModel(ApiModel):
    """A piece of status. A newer operator may have written more: unknown fields are dropped, no error."""

    model_config = ConfigDict(extra="ignore")

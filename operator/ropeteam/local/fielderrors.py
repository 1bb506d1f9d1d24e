"""Errors of fields as values: the causes of a 422, with the types and texts of `field.Error`. No I/O."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from enum import Enum
from typing import Any, Self

import orjson


class ErrorType(Enum):
    """Type of an error: how its text begins, and its reason."""

    REQUIRED = ("Required value", "FieldValueRequired")
    NOT_SUPPORTED = ("Unsupported value", "FieldValueNotSupported")
    DUPLICATE = ("Duplicate value", "FieldValueDuplicate")
    NOT_FOUND = ("Not found", "FieldValueNotFound")
    FORBIDDEN = ("Forbidden", "FieldValueForbidden")
    TOO_LONG = ("Too long", "FieldValueTooLong")
    TOO_MANY = ("Too many", "FieldValueTooMany")
    INVALID = ("Invalid value", "FieldValueInvalid")
    TYPE_INVALID = ("Invalid value", "FieldValueTypeInvalid")

    def __init__(self, label: str, reason: str) -> None:
        self.label, self.reason = label, reason


_BLOCKING = {
    ErrorType.REQUIRED,
    ErrorType.NOT_SUPPORTED,
    ErrorType.TOO_LONG,
    ErrorType.TOO_MANY,
    ErrorType.TYPE_INVALID,
}


@dataclass(frozen=True)
class FieldError:
    """An error of one field. `value`: as JSON; empty: the message shows none. The class methods build the
    errors of Kubernetes' package `field`, with its texts."""

    field: str
    type: ErrorType
    value: str = ""
    detail: str = ""

    @classmethod
    def required(cls, field: str, detail: str = "") -> Self:
        return cls(field, ErrorType.REQUIRED, detail=detail)

    @classmethod
    def not_supported(cls, field: str, value: Any, supported: Iterable[Any]) -> Self:
        known = ", ".join(json_text(each) for each in supported)
        return cls(field, ErrorType.NOT_SUPPORTED, json_text(value), f"supported values: {known}")

    @classmethod
    def duplicate(cls, field: str, value: Any) -> Self:
        return cls(field, ErrorType.DUPLICATE, json_text(value))

    @classmethod
    def not_found(cls, field: str, value: Any) -> Self:
        return cls(field, ErrorType.NOT_FOUND, json_text(value))

    @classmethod
    def forbidden(cls, field: str, detail: str) -> Self:
        return cls(field, ErrorType.FORBIDDEN, detail=detail)

    @classmethod
    def too_many(cls, field: str, count: int, most: int) -> Self:
        return cls(field, ErrorType.TOO_MANY, json_text(count), f"must have at most {most} items")

    @classmethod
    def invalid(cls, field: str, value: Any, detail: str) -> Self:
        return cls(field, ErrorType.INVALID, json_text(value), detail)

    def within(self, field: str) -> Self:
        """This error with its path below `field`: for a value that was validated by itself."""
        return replace(self, field=f"{field}.{self.field}".rstrip("."))

    @property
    def message(self) -> str:
        """Text without the field."""
        return ": ".join(part for part in (self.type.label, self.value, self.detail) if part)

    def __str__(self) -> str:
        return f"{self.field}: {self.message}"

    @property
    def cause(self) -> dict[str, str]:
        """The entry in `details.causes`."""
        return {"reason": self.type.reason, "message": self.message, "field": self.field}

    @property
    def blocks_rules(self) -> bool:
        """Whether a server does not evaluate the CEL rules of an object with this error."""
        return self.type in _BLOCKING


def json_text(value: Any) -> str:
    """JSON of a value, as messages of a server show it."""
    return orjson.dumps(value).decode()

"""How the simulators say that a promise is broken."""

from __future__ import annotations

from typing import Any


class Broken(AssertionError):
    """A promise was broken. The text says which."""


def require(holds: bool, promise: str, *details: Any) -> None:
    if not holds:
        raise Broken(f"{promise}: {' '.join(map(str, details))}")

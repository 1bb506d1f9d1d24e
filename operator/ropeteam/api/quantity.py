"""Kubernetes' quantities as numbers. Pure. Source: apimachinery, resource.Quantity."""

from __future__ import annotations

import re
from contextlib import suppress
from decimal import Decimal
from typing import Any

_SUFFIXES: dict[str, Decimal] = {
    "": Decimal(1),
    "n": Decimal("1e-9"),
    "u": Decimal("1e-6"),
    "m": Decimal("0.001"),
    "k": Decimal(1000),
    **{unit: Decimal(1000 ** (power + 2)) for power, unit in enumerate("MGTPE")},
    **{f"{unit}i": Decimal(1024 ** (power + 1)) for power, unit in enumerate("KMGTPE")},
}


def parse_quantity(quantity: Any) -> Decimal | None:
    """The number that a quantity in JSON, a text or an integer, stands for: 8589934592 for "8Gi". None: it is
    no quantity, or too large for a Decimal."""
    found = re.fullmatch(r"([+-]?[0-9.]+)([eE][+-]?[0-9]+|[a-zA-Z]*)", str(quantity))
    if found is None:
        return None
    number, suffix = found[1], found[2]
    with suppress(ArithmeticError):  # no number, as 1.2.3 or 5x; or too large, which `+` finds
        return Decimal(number) * _SUFFIXES[suffix] if suffix in _SUFFIXES else +Decimal(number + suffix)
    return None

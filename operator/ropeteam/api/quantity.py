"""Kubernetes' quantities as numbers. Pure. Source: apimachinery, resource.Quantity."""

from __future__ import annotations

import re
from contextlib import suppress
from decimal import Decimal
from typing import Any

_SUFFIXES: dict[str, Decimal] = {
    "": Decimal(1),
    "m": Decimal("0.001"),
    "k": Decimal(1000),
    **{unit: Decimal(1000 ** (power + 2)) for power, unit in enumerate("MGTPE")},
    **{f"{unit}i": Decimal(1024 ** (power + 1)) for power, unit in enumerate("KMGTPE")},
}


def amount(quantity: Any) -> Decimal | None:
    """For example 8Gi: 8589934592. None: it is no quantity."""
    found = re.fullmatch(r"([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)([a-zA-Z]*)", str(quantity))
    if found is None or found[2] not in _SUFFIXES:
        return None
    with suppress(ArithmeticError):  # also of one that is too large
        return Decimal(found[1]) * _SUFFIXES[found[2]]
    return None

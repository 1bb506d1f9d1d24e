"""dataclasses.replace for campaigns, several times as fast: a state machine copies its state ten times per
event.

    import tests.sim.quick                 before whatever imports `replace` from dataclasses

The copy has the same fields, and is the original where nothing changes. Only for frozen dataclasses that
check nothing when they are made: all others get the real one.
"""

from __future__ import annotations

import dataclasses
from functools import cache
from typing import Any

_real = dataclasses.replace


@cache
def _names(kind: type) -> tuple[str, ...]:
    """Of its fields; () where making one does more than keep them."""
    plain = kind.__dataclass_params__.frozen and not hasattr(kind, "__post_init__")  # type: ignore[attr-defined]
    fields = dataclasses.fields(kind)
    return tuple(each.name for each in fields) if plain and all(each.init for each in fields) else ()


def _replace(old: Any, /, **changes: Any) -> Any:
    kind: Any = type(old)
    names = _names(kind)
    if not names:
        return _real(old, **changes)
    have = old.__dict__
    for name, value in changes.items():
        if have.get(name, names) is not value:
            break
    else:
        return old
    if len(have) != len(names):  # and cached properties
        have = {name: have[name] for name in names}
    values = {**have, **changes}
    if len(values) != len(names):
        raise TypeError(f"{kind.__name__} has no fields {sorted(set(changes) - set(names))}")
    new = object.__new__(kind)
    object.__setattr__(new, "__dict__", values)
    return new


dataclasses.replace = _replace

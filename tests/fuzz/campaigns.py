"""All campaigns, by name. A module is imported when one of its own is requested: some need torch."""

from __future__ import annotations

from functools import cache
from importlib import import_module

from tests.fuzz.campaign import Campaign

MODULES = {
    "objects": ("trainingjobs", "pods", "services", "nodes", "outlines"),
    "frames": ("agents", "agents-live", "ranks"),
    "servers": ("servers", "requests"),
    "talk": ("coordinator", "metrics", "probes", "answers"),
    "manifests": ("yaml", "checkpoints", "journals"),
    "pickles": ("metadata",),
}
NAMES = tuple(name for names in MODULES.values() for name in names)


@cache
def named(name: str) -> Campaign:
    """Raises KeyError."""
    module = next((module for module, names in MODULES.items() if name in names), "")
    if not module:
        raise KeyError(f"no campaign {name}; there are {', '.join(NAMES)}")
    found = import_module(f"tests.fuzz.{module}").CAMPAIGNS
    campaign: Campaign = {each.name: each for each in found}[name]
    return campaign

"""What can go wrong for a person at the keyboard. Each text says what, where, and what to change.

The command line prints these texts and nothing else; any other exception is a bug of ours and shows its
traceback.
"""

from __future__ import annotations

from collections.abc import Sequence


class RopeteamError(Exception):
    """Base of all of them. `str()` is for people."""


class ConfigError(RopeteamError):
    """A setting, an option or a file that cannot be used."""


class InvalidManifest(RopeteamError):
    """A TrainingJob that cannot work. `faults`: one sentence each, field first."""

    def __init__(self, where: str, faults: Sequence[str]) -> None:
        super().__init__("\n  ".join([f"{where} cannot work:", *faults]))
        self.faults = tuple(faults)


class NotFound(RopeteamError):
    """Nothing of that name in the cluster."""


class ClusterUnreachable(RopeteamError):
    """No answer from the API server."""

"""Mask possible secrets in a snapshot: it is meant to be shown to others.

    env, headers      every value
    command, args     text after a name such as --token, password= or API_KEY:, to the end of the argument;
                      user and password of a URL
    annotations       all but ours: kubectl keeps the whole manifest in one
    csi, flexVolume   every attribute and option

The same text is replaced by the same mask and another by another, so that `decide` returns for the masked
observation what it returns for the original. Limit: messages of scripts and servers are left as they are.
"""

from __future__ import annotations

import re
from typing import Any

from ropeteam.api.job import GROUP
from ropeteam.core.questions import gang
from ropeteam.core.seen.observation import Observation
from ropeteam.core.seen.view import build_view

_LONGEST = 16_384
"""Longest valid text: a longer one is refused, and must stay so."""
_NAME = re.compile(r"[\w.-]+")
_SECRET = re.compile(
    r"(?i)token|secret|passw|passphrase|credential|auth|bearer|(?:api|access|private)[-_.]?key"
    r"|(?:key|pass|pwd?)(?![a-z])|(?<![a-z])pat(?![a-z])"
)
_AFTER_NAME = re.compile(r"[^\w\s=:/]*(?:[\s=:(,]|\Z)")
"""Quotes and brackets, then what separates a name from its value. No slash: /secrets/a.py is no secret."""
_IN_URL = re.compile(r"(?<=//)([^/?#\s]+)(?=@)")
_MAPS = ("annotations", "volumeAttributes", "options")
"""Fields whose values are all masked, except those of our own names."""


def masked_observation(seen: Observation) -> Observation:
    """Copy of an observation, masked as described above."""
    masks = _Masks()
    annotations = masks.masked_values(seen.metadata.annotations)
    metadata = seen.metadata.model_copy(update={"annotations": annotations})
    masked = seen.model_copy(update={"metadata": metadata, "spec": masks.masked_part(seen.spec)})
    status = seen.status.model_copy(update={"pod_spec_hash": _masked_hash(seen, masked)})
    return masked.model_copy(update={"status": status})


def _masked_hash(seen: Observation, masked: Observation) -> str:
    """Value of status.pod_spec_hash for the masked observation: the digest of the masked spec if the spec has
    not changed since it was saved, `***` if it has, "" if none was saved.

    With the digest of the original, `decide` would see a changed spec, and a short secret could be guessed.
    """
    saved = seen.status.pod_spec_hash
    if saved == gang.pod_spec_hash(build_view(seen).spec):
        return gang.pod_spec_hash(build_view(masked).spec)
    return saved and "***"


def _secret_start(text: str) -> int | None:
    """Index at which a secret begins: after the first name of one and its separator. The length of the text,
    if nothing follows; None, if no such name is in it. Linear time."""
    for name in _NAME.finditer(text):
        if _SECRET.search(name[0]) and (separator := _AFTER_NAME.match(text, name.end())):
            return separator.end()
    return None


class _Masks:
    """Masks of one observation: `***1`, `***2`, ... by the text that they replace. No method changes its
    argument. Values of types that the schema does not have stay as they are, except in maps
    (masked_values)."""

    def __init__(self) -> None:
        self._masks: dict[str, str] = {}

    def mask(self, text: str) -> str:
        """Mask of a text: that of the same text before, or a new one."""
        return _padded_if_too_long(text, self._masks.setdefault(text, f"***{len(self._masks) + 1}"))

    def masked_values(self, texts: dict[str, Any]) -> dict[str, Any]:
        """Map with all values masked, as texts, except those of our own names."""
        return {
            name: text if name.startswith(f"{GROUP}/") else self.mask(str(text))
            for name, text in texts.items()
        }

    def masked_part(self, value: Any) -> Any:
        """A spec, or any part of one, with all below it masked: each `value` of an object without a `key`,
        which are variables and headers (a toleration has a key), and the fields of _masked_field."""
        if isinstance(value, list):
            return [self.masked_part(each) for each in value]
        if not isinstance(value, dict):
            return value
        masked = {name: self._masked_field(name, each) for name, each in value.items()}
        if isinstance(masked.get("value"), str) and "key" not in masked:
            masked["value"] = self.mask(masked["value"])
        return masked

    def _masked_field(self, name: str, value: Any) -> Any:
        """Value of the field of this name, masked as it requires."""
        if name in _MAPS and isinstance(value, dict):
            return self.masked_values(value)
        if name in ("command", "args") and isinstance(value, list):
            return self._masked_arguments(value)
        return self.masked_part(value)

    def _masked_arguments(self, arguments: list[Any]) -> list[Any]:
        """Arguments of a command. One is masked as a whole if the one before it ends in the name of a secret,
        and is a flag (`--token VALUE`) or ends in `:` or `=` (`password: VALUE`); else as
        _masked_argument."""
        masked, is_value = [], False
        for argument in arguments:
            if not isinstance(argument, str):
                masked.append(argument)
                continue
            masked.append(self.mask(argument) if is_value else self._masked_argument(argument))
            is_value = _secret_start(argument) == len(argument) and (
                argument.startswith("-") or argument.endswith((":", "="))
            )
        return masked

    def _masked_argument(self, argument: str) -> str:
        """One argument: user and password of each URL in it, then the text after the first name of a secret.
        Masked as a whole where that would make a valid length too long, so that `decide` returns the same."""
        masked = _IN_URL.sub(lambda found: self.mask(found[1]), argument)
        start = _secret_start(masked)
        if start is not None and start < len(masked):
            masked = masked[:start] + self.mask(masked[start:])
        if len(masked) > _LONGEST >= len(argument):
            return self.mask(argument)
        return _padded_if_too_long(argument, masked)


def _padded_if_too_long(text: str, mask: str) -> str:
    """The mask, as long as the text if that is longer than valid: then it must stay so."""
    return mask.ljust(len(text), "*") if len(text) > _LONGEST else mask

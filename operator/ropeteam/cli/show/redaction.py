"""Mask possible secrets in a snapshot: it is meant to be shown to others.

    env, headers      every value
    command, args     text after a name such as --token, password= or API_KEY:, to the end of the argument;
                      user and password of a URL
    annotations       all but ours: kubectl keeps the whole manifest in one
    csi, flexVolume   every attribute and option

The same text is replaced by the same mark and another by another, so that `decide` returns for the masked
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


def masked(seen: Observation) -> Observation:
    marks = _Marks()
    metadata = seen.metadata.model_copy(update={"annotations": marks.of_all(seen.metadata.annotations)})
    hidden = seen.model_copy(update={"metadata": metadata, "spec": marks.within(seen.spec)})
    status = seen.status.model_copy(update={"pod_spec_hash": _shape(seen, hidden)})
    return hidden.model_copy(update={"status": status})


def _shape(seen: Observation, hidden: Observation) -> str:
    """Digest of the masked spec. With that of the original, the spec would seem changed, and secrets could be
    guessed.
    """
    saved = seen.status.pod_spec_hash
    if saved == gang.pod_spec_hash(build_view(seen).spec):
        return gang.pod_spec_hash(build_view(hidden).spec)
    return saved and "***"


def _secret_start(text: str) -> int | None:
    """Index of the text after the name of a secret; the length, if nothing follows the name. Linear time."""
    for name in _NAME.finditer(text):
        if _SECRET.search(name[0]) and (separator := _AFTER_NAME.match(text, name.end())):
            return separator.end()
    return None


class _Marks:
    """Marks by the text that they replace."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def of(self, text: str) -> str:
        return _padded_if_too_long(text, self._known.setdefault(text, f"***{len(self._known) + 1}"))

    def of_all(self, texts: dict[str, Any]) -> dict[str, Any]:
        return {
            name: text if name.startswith(f"{GROUP}/") else self.of(str(text)) for name, text in texts.items()
        }

    def within(self, value: Any) -> Any:
        """Mask a spec, or a part of one."""
        if isinstance(value, list):
            return [self.within(each) for each in value]
        if not isinstance(value, dict):
            return value
        masked_fields = {key: self._field(key, each) for key, each in value.items()}
        if isinstance(masked_fields.get("value"), str) and "key" not in masked_fields:  # a toleration has one
            masked_fields["value"] = self.of(masked_fields["value"])
        return masked_fields

    def _field(self, key: str, value: Any) -> Any:
        if key in _MAPS and isinstance(value, dict):
            return self.of_all(value)
        if key in ("command", "args") and isinstance(value, list):
            return self._arguments(value)
        return self.within(value)

    def _arguments(self, arguments: list[Any]) -> list[Any]:
        found, is_value = [], False
        for argument in arguments:
            if not isinstance(argument, str):
                found.append(argument)
                continue
            found.append(self.of(argument) if is_value else self._argument(argument))
            is_value = _secret_start(argument) == len(argument) and (
                argument.startswith("-") or argument.endswith((":", "="))
            )
        return found

    def _argument(self, argument: str) -> str:
        hidden = _IN_URL.sub(lambda m: self.of(m[1]), argument)
        start = _secret_start(hidden)
        if start is not None and start < len(hidden):
            hidden = hidden[:start] + self.of(hidden[start:])
        if len(hidden) > _LONGEST >= len(argument):
            return self.of(argument)
        return _padded_if_too_long(argument, hidden)


def _padded_if_too_long(text: str, mark: str) -> str:
    return mark.ljust(len(text), "*") if len(text) > _LONGEST else mark

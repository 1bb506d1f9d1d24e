"""Hide in a snapshot what may be secret: it is meant to be shown to others.

    env, headers      every value
    command, args     what follows a word such as --token, password= or API_KEY:, to the end of the argument;
                      user and password of a URL
    annotations       all but ours: kubectl keeps the whole manifest in one
    csi, flexVolume   every attribute and option

The same text is hidden by the same mark and another by another, so that `decide` says of the masked
observation what it says of the true one. Limit: what a script or a server has said is left as it is.
"""

from __future__ import annotations

import re
from typing import Any

from ropeteam.api.job import GROUP
from ropeteam.core.questions import gang
from ropeteam.core.seen.observation import Observation
from ropeteam.core.seen.view import build_view

_LONGEST = 16_384
"""Text: what is longer is refused, and must stay so."""
_NAME = re.compile(r"[\w.-]+")
_SECRET = re.compile(
    r"(?i)token|secret|passw|passphrase|credential|auth|bearer|(?:api|access|private)[-_.]?key"
    r"|(?:key|pass|pwd?)(?![a-z])|(?<![a-z])pat(?![a-z])"
)
_AFTER_NAME = re.compile(r"[^\w\s=:/]*(?:[\s=:(,]|\Z)")
"""Quotes and brackets, then what separates a name from its value. No slash: /secrets/a.py tells nothing."""
_IN_URL = re.compile(r"(?<=//)([^/?#\s]+)(?=@)")
_MAPS = ("annotations", "volumeAttributes", "options")


def masked(seen: Observation) -> Observation:
    marks = _Marks()
    metadata = seen.metadata.model_copy(update={"annotations": marks.of_all(seen.metadata.annotations)})
    hidden = seen.model_copy(update={"metadata": metadata, "spec": marks.within(seen.spec)})
    status = seen.status.model_copy(update={"shape": _shape(seen, hidden)})
    return hidden.model_copy(update={"status": status})


def _shape(seen: Observation, hidden: Observation) -> str:
    """The saved digest is of the true spec: with it the masked one would seem changed, and secrets could be
    guessed.
    """
    saved = seen.status.shape
    if saved == gang.shape(build_view(seen).spec):
        return gang.shape(build_view(hidden).spec)
    return saved and "***"


def _told(text: str) -> int | None:
    """Where the text after the name of a secret begins; its length, if the name is all there is. Linear."""
    for name in _NAME.finditer(text):
        if _SECRET.search(name[0]) and (between := _AFTER_NAME.match(text, name.end())):
            return between.end()
    return None


class _Marks:
    """Which mark stands for which text."""

    def __init__(self) -> None:
        self._known: dict[str, str] = {}

    def of(self, text: str) -> str:
        return _kept_too_long(text, self._known.setdefault(text, f"***{len(self._known) + 1}"))

    def of_all(self, texts: dict[str, Any]) -> dict[str, Any]:
        return {
            name: text if name.startswith(f"{GROUP}/") else self.of(str(text)) for name, text in texts.items()
        }

    def within(self, value: Any) -> Any:
        """Of a spec, or a part of one."""
        if isinstance(value, list):
            return [self.within(each) for each in value]
        if not isinstance(value, dict):
            return value
        kept = {key: self._field(key, each) for key, each in value.items()}
        if isinstance(kept.get("value"), str) and "key" not in kept:  # a toleration has one
            kept["value"] = self.of(kept["value"])
        return kept

    def _field(self, key: str, value: Any) -> Any:
        if key in _MAPS and isinstance(value, dict):
            return self.of_all(value)
        if key in ("command", "args") and isinstance(value, list):
            return self._words(value)
        return self.within(value)

    def _words(self, words: list[Any]) -> list[Any]:
        found, follows = [], False
        for word in words:
            if not isinstance(word, str):
                found.append(word)
                continue
            found.append(self.of(word) if follows else self._word(word))
            follows = _told(word) == len(word) and (word.startswith("-") or word.endswith((":", "=")))
        return found

    def _word(self, word: str) -> str:
        hidden = _IN_URL.sub(lambda m: self.of(m[1]), word)
        told = _told(hidden)
        if told is not None and told < len(hidden):
            hidden = hidden[:told] + self.of(hidden[told:])
        if len(hidden) > _LONGEST >= len(word):
            return self.of(word)
        return _kept_too_long(word, hidden)


def _kept_too_long(text: str, mark: str) -> str:
    return mark.ljust(len(text), "*") if len(text) > _LONGEST else mark

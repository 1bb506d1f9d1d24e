"""Lines for people and grep: `<time> <event> key=value ...` on stdout. A repeated decision is written once, a
repeated nuisance rarely. No write blocks on a slow reader, because `lines.replace_standard_streams` has
replaced sys.stdout in the coordinator's process."""

from __future__ import annotations

import json
import time
from collections.abc import Callable

LIMIT_SECONDS = 10.0
_MOST_KINDS = 256


class Log:
    """The log of one coordinator. `write`: writes one line; `clock`: monotonic seconds."""

    def __init__(self, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._write, self._clock = write, clock
        self._last = ""
        self._kinds: dict[str, tuple[float, int]] = {}

    def write(self, event: str, **facts: object) -> None:
        """Write one line. Facts that are None are left out."""
        stamp = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        self._write(f"{stamp} {_text(event, facts)}")

    def write_if_changed(self, event: str, **facts: object) -> None:
        """Write the line only if it differs from the last one that this method has written."""
        text = _text(event, facts)
        if text != self._last:
            self._last = text
            self.write(event, **facts)

    def write_limited(self, event: str, reason: str, **facts: object) -> None:
        """Write an event with the same reason at most every LIMIT_SECONDS; the next line of that kind has the
        number of lines left out. At _MOST_KINDS kinds all are forgotten, so that memory stays bounded."""
        now, kind = self._clock(), f"{event} {reason}"
        written_at, left_out = self._kinds.get(kind, (-LIMIT_SECONDS, 0))
        if now < written_at + LIMIT_SECONDS:
            self._kinds[kind] = (written_at, left_out + 1)
            return
        if len(self._kinds) >= _MOST_KINDS:
            self._kinds.clear()
        self._kinds[kind] = (now, 0)
        extra = {"left_out": left_out} if left_out else {}
        self.write(event, **facts, reason=reason, **extra)


def _text(event: str, facts: dict[str, object]) -> str:
    """The line without its time."""
    shown = (f"{name}={_value(value)}" for name, value in facts.items() if value is not None)
    return " ".join((event, *shown))


def _value(value: object) -> str:
    """The value, quoted if it could be misread; a newline in a message must not look like a line of ours."""
    text = str(value)
    return (
        text if text and text.isprintable() and not any(char in text for char in ' "=') else json.dumps(text)
    )

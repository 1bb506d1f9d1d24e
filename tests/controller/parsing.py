"""How much of what tenants write is parsed: counted, for what it takes is not to be asserted."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from ropeteam.controller.client import boundedjson


class Parsed:
    """Bytes that `bounded` has parsed since, and how often it has looked at each bracket of a text."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.bytes, self.walks = 0, 0
        self._real = boundedjson.truncate_depth
        patch.setattr(boundedjson, "orjson", self)
        patch.setattr(boundedjson, "truncate_depth", self._shallow)

    JSONDecodeError = orjson.JSONDecodeError

    def loads(self, text: bytes) -> Any:
        self.bytes += len(text)
        return orjson.loads(text)

    def _shallow(self, text: bytes, levels: int) -> bytes:
        self.walks += 1
        return self._real(text, levels)

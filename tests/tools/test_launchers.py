"""The recorded options of launchers are those of the launchers that uv.lock holds."""

from __future__ import annotations

import sys

import pytest
from tools import launchers


def test_the_recorded_options_are_those_of_torch_and_uv():
    found = launchers.options_of(sys.executable)
    assert {"torchrun", "uv"} <= found.keys()
    recorded = launchers.recorded()
    for name, row in found.items():
        assert recorded[name] == row, f"run `make launchers`: {row['version']}"


def test_the_file_is_as_the_tool_writes_it():
    assert launchers.FILE.read_text() == launchers.text(launchers.recorded())


def test_an_option_that_differs_is_reported(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
):
    row = launchers.recorded()["uv"]
    monkeypatch.setattr(launchers, "options_of", lambda _: {"uv": row | {"version": "uv 99"}})
    assert launchers.main(["--check"]) == 1
    assert "options.py differs from uv 99" in capsys.readouterr().out
    monkeypatch.setattr(launchers, "options_of", lambda _: {"uv": row})
    assert launchers.main(["--check"]) == 0

"""The clock of leases and fences."""

from __future__ import annotations

import time

import pytest

from ropeteam_trainer.system import clocks


def test_a_process_that_loses_its_processor_between_two_readings_does_not_step_back(
    monkeypatch: pytest.MonkeyPatch,
):
    boot, running = 100.0, 90.0
    monkeypatch.setattr(clocks, "boot_seconds", lambda: boot)
    monkeypatch.setattr(time, "monotonic", lambda: running)
    asleep = clocks._SuspendedTime()
    assert asleep() == 10.0
    running = 90.03
    assert asleep() == 10.0, "30 ms went by after boot was read"
    boot, running = 105.03, 90.03
    assert asleep() == 15.0, "the machine was suspended"

"""The number of a coordinator's boot only grows, whenever the power goes."""

from __future__ import annotations

from pathlib import Path

import pytest
from tests.crash.recording import Operation, Synced, recorded
from tests.crash.replaying import power_losses, write

from ropeteam_trainer.coordinator.__main__ import count_boot


@pytest.fixture(scope="module")
def boots(tmp_path_factory: pytest.TempPathFactory) -> tuple[list[Operation], int]:
    folder = tmp_path_factory.mktemp("state")
    (folder / "boot-9").touch()
    with recorded(folder) as recording:
        for _ in range(3):
            recording.note(count_boot(folder))
    return recording.operations, recording.before


def goes_back(operations: list[Operation], before: int, scratch: Path) -> bool:
    for number, loss in enumerate(power_losses(operations, before)):
        folder = scratch / str(number)
        folder.mkdir(parents=True)
        write(loss.tree, folder)
        if count_boot(folder) <= max(loss.noted, default=9):
            return True
    return False


def test_after_any_power_loss_the_next_boot_has_a_higher_number(
    boots: tuple[list[Operation], int], tmp_path: Path
) -> None:
    assert not goes_back(*boots, tmp_path)


def test_without_any_of_its_syncs_it_would_not(boots: tuple[list[Operation], int], tmp_path: Path) -> None:
    operations, before = boots
    callers = {each.caller for each in operations if isinstance(each, Synced)}
    assert callers == {"folders.sync for __main__.count_boot"}
    for caller in callers:
        without = [each for each in operations if not (isinstance(each, Synced) and each.caller == caller)]
        assert goes_back(without, before, tmp_path / caller), (
            f"{caller} is of no use, or this test sees nothing"
        )

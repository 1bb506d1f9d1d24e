"""The callback in transformers' own Trainer, in one process under the shim that runs every script."""

from __future__ import annotations

import pytest
from tests.agent.conftest import shim
from tests.frameworks.conftest import SCRIPTS

from ropeteam_trainer.agent.processes.page import Page
from ropeteam_trainer.contract import config

__all__ = ["shim"]


ALONE = {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": "1", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "0"}
SCRIPT = (SCRIPTS / "trainer.py").read_text()


@pytest.fixture
def train(shim, tmp_path, frameworks):
    """Train two steps. Result: the process, and the last heartbeat in its page."""

    def run(before: str = "", after: str = ""):
        page = Page(tmp_path / "page")
        (tmp_path / "x.py").write_text(f"{before}\n{SCRIPT}\n{after}\n")
        variables = ALONE | {"PYTHONPATH": frameworks["PYTHONPATH"], config.RANK_PAGE: str(page.path)}
        done = shim("script", "x.py", str(tmp_path / "out"), "2", **variables)
        assert done.returncode == 0, done.stderr
        assert "saved step 2" in done.stdout
        heartbeat = page.read()
        page.close()
        return done, heartbeat

    return run


def test_each_step_is_a_heartbeat(train):
    done, heartbeat = train()
    assert (heartbeat.step, heartbeat.steps_here, heartbeat.samples, heartbeat.phase) == (2, 2, 4.0, "")
    assert "ropeteam: " not in done.stderr


def test_an_error_in_it_is_one_line_and_training_goes_on(train):
    lose = (
        f"import os; page = os.environ['{config.RANK_PAGE}']; os.environ['{config.RANK_PAGE}'] = '/nowhere'"
    )
    done, heartbeat = train(lose, f"os.environ['{config.RANK_PAGE}'] = page")
    assert (
        done.stderr.count(
            "ropeteam: progress of transformers' Trainer is no longer reported: FileNotFoundError"
        )
        == 1
    )
    assert heartbeat.steps_here == 0


def test_reports_of_the_script_itself_win(train):
    done, heartbeat = train("import ropeteam_trainer; ropeteam_trainer.init()")
    assert heartbeat.steps_here == 0
    assert "ropeteam: " not in done.stderr

"""Plan that a rank receives when it joins, and the environment of processes that it starts."""

from __future__ import annotations

import os
import socket
import threading
from pathlib import Path

import pytest

from ropeteam_trainer import joining
from ropeteam_trainer.contract import codec, config
from ropeteam_trainer.contract.config import RankPlan, Resume
from ropeteam_trainer.contract.local import FromRank, ToRank
from ropeteam_trainer.contract.strategy import ParameterServer, Strategy, Sync, SyncType


def a_plan(secret: str) -> RankPlan:
    sync = Sync(SyncType.PARAMETER_SERVER, parameter_server=ParameterServer())
    strategy = Strategy(sync=sync)
    return RankPlan(
        "1.0.1", (), False, None, Resume.LATEST, None, "job", "uid", strategy, ("10.0.0.1:29404",), secret
    )


@pytest.fixture
def environ(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.delenv(config.RANK_SOCKET, raising=False)
    return monkeypatch


def test_a_secret_in_the_environment_is_taken_and_not_handed_on(environ: pytest.MonkeyPatch) -> None:
    """Where no shim runs the script."""
    environ.setenv(config.RANK_PLAN, codec.encode(a_plan("c0ffee")).decode())
    _, plan, _ = joining.join_world("cpu", 60, None, None)
    assert plan == a_plan("c0ffee")
    assert codec.decode(RankPlan, os.environ[config.RANK_PLAN]) == a_plan("")


def test_without_one_it_is_requested_from_the_agent(environ: pytest.MonkeyPatch, tmp_path: Path) -> None:
    requests: list[FromRank] = []

    def answer() -> None:
        connection, _ = listener.accept()
        with connection, connection.makefile("rb") as lines:
            requests.append(codec.decode(FromRank, lines.readline()))
            connection.sendall(codec.encode(ToRank(secret="c0ffee")) + b"\n")

    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        threading.Thread(target=answer, daemon=True).start()
        environ.setenv(config.RANK_SOCKET, str(tmp_path / "s"))
        environ.setenv(config.RANK_PLAN, codec.encode(a_plan("")).decode())
        _, plan, _ = joining.join_world("cpu", 60, None, None)
    assert plan.secret == "c0ffee"
    assert requests == [FromRank(wants_secret=True)]

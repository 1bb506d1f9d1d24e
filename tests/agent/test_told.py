"""What the shim tells of an exception, and what the agent makes of its class."""

from __future__ import annotations

import socket
from pathlib import Path

import pytest

from ropeteam_trainer.agent import learn, rankmain
from ropeteam_trainer.checkpoint import restore
from ropeteam_trainer.contract import codec
from ropeteam_trainer.contract.local import FromRank


@pytest.mark.parametrize(
    ("error", "known"),
    [
        (restore.CheckpointNotFound("x"), learn._PROBLEMS),
        (restore.CheckpointUnavailable("x"), learn._STORAGE),
        (restore.UnavailableElsewhere("x"), learn._STORAGE),
        (restore.UnavailableEverywhere("x"), learn._STORAGE),
    ],
    ids=lambda each: type(each).__name__,
)
def test_the_agent_knows_our_exceptions_by_the_class_that_the_shim_tells(
    error: Exception, known: dict[str, object], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "s"))
        listener.listen()
        monkeypatch.setenv("ROPETEAM_RANK_SOCKET", str(tmp_path / "s"))
        rankmain._tell(error, "/")
        connection, _ = listener.accept()
        with connection, connection.makefile("rb") as lines:
            said = codec.decode(FromRank, lines.readline())
    assert said.error_type == type(error).__name__
    assert said.error_class in known

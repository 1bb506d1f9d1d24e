"""Fields of an exception that the shim sends, and its class as agent and coordinator read it."""

from __future__ import annotations

import os
import socket
from collections.abc import Container
from pathlib import Path

import pytest
import torch

from ropeteam_trainer.agent.machine import apply
from ropeteam_trainer.agent.script import rankmain
from ropeteam_trainer.checkpoint.decisions import restore
from ropeteam_trainer.contract import codec
from ropeteam_trainer.contract.local import FromRank
from ropeteam_trainer.coordinator.membership import evidence


@pytest.mark.parametrize(
    ("error", "known"),
    [
        (restore.CheckpointNotFound("x"), apply._PROBLEMS),
        (restore.CheckpointUnavailable("x"), apply._STORAGE),
        (restore.UnavailableElsewhere("x"), apply._STORAGE),
        (restore.UnavailableEverywhere("x"), apply._STORAGE),
        (torch.OutOfMemoryError("CUDA out of memory"), evidence._WITHOUT_MEMORY),
    ],
    ids=lambda each: type(each).__name__,
)
def test_exceptions_with_a_meaning_are_known_by_the_class_that_the_shim_sends(
    error: Exception, known: Container[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    message = sent_error(error, monkeypatch, tmp_path)
    assert message.error_type == type(error).__name__
    assert (apply._checkpoint_error_name(message.error_class) or message.error_class) in known


def sent_error(error: Exception, monkeypatch: pytest.MonkeyPatch, folder: Path) -> FromRank:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(folder / "s"))
        listener.listen()
        monkeypatch.setenv("ROPETEAM_AGENT_SOCKET", str(folder / "s"))
        rankmain._report_error(error, "/")
        connection, _ = listener.accept()
        with connection, connection.makefile("rb") as lines:
            return codec.decode(FromRank, lines.readline())


def test_a_file_name_that_is_not_utf_8_is_sent_with_a_question_mark(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    error = ValueError("cannot decode sample " + os.fsdecode(b"caf\xe9.txt"))
    message = sent_error(error, monkeypatch, tmp_path)
    assert message.message == "ValueError: cannot decode sample caf?.txt (?)"


class Unspeakable(Exception):
    def __str__(self) -> str:
        raise KeyError("no words")


def test_an_exception_whose_text_fails_is_sent_all_the_same(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    message = sent_error(Unspeakable(), monkeypatch, tmp_path)
    assert message.message == "Unspeakable: its __str__ raised KeyError (?)"

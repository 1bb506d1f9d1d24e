"""The recipes learn, and the same command runs alone, under torchrun and as ranks."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from lab.ranks.processes import FakeAgent, RankGroup

from ropeteam_trainer.contract import codec
from ropeteam_trainer.contract.strategy import Strategy
from ropeteam_trainer.contract.world import WorldId
from ropeteam_trainer.recipes import char_gpt, common

RECIPES = Path(char_gpt.__file__).parent
TEXT = "the quick brown fox jumps over the lazy dog. " * 200


def test_char_gpt_learns_a_text_of_the_users(tmp_path: Path) -> None:
    (tmp_path / "fox.txt").write_text(TEXT)
    options = ("--text", str(tmp_path / "fox.txt"), "--epochs", "8", "--global-batch", "12")
    ended = RankGroup(tmp_path, 2).run(str(RECIPES / "char_gpt.py"), *options)
    assert ended.codes == [0, 0], ended.output
    assert ended.result["validation_loss"] < 0.5
    assert ended.result["windows"] == (len(TEXT) // 10 - 1) // char_gpt.CONTEXT
    assert "step 50/" in ended.output[0]
    assert ended.output[1] == ""


def test_digits_reads_at_least_95_percent(tmp_path: Path) -> None:
    ended = RankGroup(tmp_path, 2).run(str(RECIPES / "digits.py"))
    assert ended.codes == [0, 0], ended.output
    assert ended.result["accuracy"] >= 0.95


SIXTEEN_TIMES = {"batch": {"global_samples": 256}}
SCALED = {"learning_rate": {"scaling": "Linear", "base_batch": 16, "warmup_steps": 15}}


@pytest.mark.parametrize(("settings", "reads"), [(SCALED, True), ({}, False)], ids=["scaled", "not scaled"])
def test_a_batch_of_sixteen_times_the_size_needs_a_rate_that_follows(
    settings: dict[str, Any], reads: bool, tmp_path: Path
) -> None:
    """The rate fits a batch of 16: that reads 0.97 of the pictures (benchmarks/large_batch.py)."""
    strategy = codec.from_plain(Strategy, SIXTEEN_TIMES | settings)
    options = ["--optimizer", "SGD", "--learning-rate", "0.02", "--epochs", "26", "--seed", "1"]
    agent = FakeAgent(tmp_path, 2, None, WorldId(1, 0, 1))
    ended = RankGroup(tmp_path / "group", 2).run(
        str(RECIPES / "digits.py"), *options, agent=agent, strategy=strategy
    )
    agent.close()
    assert ended.codes == [0, 0], ended.output
    accuracy = ended.result["accuracy"]
    assert accuracy >= 0.965 if reads else accuracy < 0.93


def test_the_default_text_is_split_into_windows_that_cover_it() -> None:
    text = char_gpt.read_text(None)
    train, validation, symbols = char_gpt.windows_of(text)
    assert len(text) > 400_000
    assert symbols == len(set(text))
    assert torch.equal(train[0, -1], train[1, 0]), "each letter is guessed once"
    assert len(train) == (len(text) * 9 // 10 - 1) // char_gpt.CONTEXT
    assert len(validation) == (len(text) - len(text) * 9 // 10 - 1) // char_gpt.CONTEXT
    parameters = sum(p.numel() for p in char_gpt.CharGPT(symbols).parameters())
    assert 110_000 < parameters < 120_000


@pytest.mark.parametrize("problem", ["missing", "short", "binary"])
def test_a_text_that_cannot_be_used_is_named_and_ends_with_2(
    tmp_path: Path, problem: str, capfd: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / problem
    if problem != "missing":
        path.write_bytes({"short": b"a word", "binary": b"\xff\xfe" * 1000}[problem])
    with pytest.raises(SystemExit) as end:
        char_gpt.windows_of(char_gpt.read_text(path))
    assert end.value.code == 2
    message = capfd.readouterr().err
    assert message.startswith("error: ")
    assert "are too few" in message if problem == "short" else str(path) in message


def test_the_learning_rate_rises_and_falls() -> None:
    curve = [common.warmup_then_cosine(step, 10, 100) for step in range(120)]
    assert curve[0] == pytest.approx(0.1)
    assert max(curve) == curve[9] == curve[10] == 1
    assert curve[10:] == sorted(curve[10:], reverse=True)
    assert curve[100] == curve[119] == pytest.approx(0.05)


@pytest.mark.parametrize(
    "command",
    [
        [sys.executable, "-m"],
        [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m"],
    ],
    ids=["python", "torchrun"],
)
def test_the_same_command_runs_without_the_operator(command: list[str]) -> None:
    recipe = ["ropeteam_trainer.recipes.digits", "--epochs", "1"]
    done = subprocess.run([*command, *recipe], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert 'RESULT {"accuracy": ' in done.stdout

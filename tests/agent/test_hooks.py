"""Hooks in libraries that a script imports, which are never in the way."""

from __future__ import annotations

import pytest
from tests.agent.test_fork import a_world, ended, zygote_is_warm

from ropeteam_trainer.contract.config import Start

WARNING = "torch.nn.DataParallel splits a batch over the GPUs of one process only"
DATA_PARALLEL = """
import inspect, sys, torch
module = sys.modules["torch.nn.parallel.data_parallel"]
before = torch.nn.DataParallel.__init__
first, second = (torch.nn.DataParallel(torch.nn.Linear(2, 1)) for _ in range(2))
print("works", tuple(first(torch.ones(4, 2)).shape), type(second).__name__)
print("signature", *inspect.signature(before).parameters)
print("loader", type(module.__loader__).__name__, "class DataParallel" in inspect.getsource(module))
"""


def fake_transformers(folder, source):
    """A package of that name. The real one is tested in tests/frameworks."""
    (folder / "transformers").mkdir()
    (folder / "transformers/__init__.py").write_text("")
    (folder / "transformers/trainer.py").write_text(source)
    (folder / "x.py").write_text(
        "import transformers.trainer as t; print('goes on', vars(t).get('DEFAULT_CALLBACKS'))"
    )


def test_data_parallel_is_warned_of_once_and_works_as_ever(shim, tmp_path):
    (tmp_path / "x.py").write_text(DATA_PARALLEL)
    done = shim("script", "x.py")
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(WARNING) == 1
    assert "DistributedDataParallel" in done.stderr
    assert done.stdout.splitlines() == [
        "works (4, 1) DataParallel",
        "signature self module device_ids output_device dim",
        "loader SourceFileLoader True",
    ]


async def test_a_forked_rank_is_warned_too(make_pod, coordinator):
    pod = make_pod(start=Start.FORK)
    (pod.folder / "x.py").write_text(DATA_PARALLEL)
    pod.start("python3", "x.py", ROPETEAM_STORE="")
    await zygote_is_warm(pod)
    await ended(coordinator, await a_world(coordinator, 1))
    await pod.printed("works (4, 1) DataParallel")
    assert pod.text().count(WARNING) == 1


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("import sys", "no hook in transformers.trainer: "),
        ("raise ImportError('it is broken')", "it is broken"),
    ],
)
def test_a_version_that_is_not_known_is_left_alone(shim, tmp_path, source, expected):
    fake_transformers(tmp_path, source)
    done = shim("script", "x.py")
    assert expected in done.stderr
    assert ("goes on" in done.stdout) is (done.returncode == 0) is ("ImportError" not in source)


def test_hooks_can_be_switched_off(shim, tmp_path):
    fake_transformers(tmp_path, "DEFAULT_CALLBACKS = []")
    assert "no hook in" in shim("script", "x.py").stderr, "there is no TrainerCallback in this one"
    done = shim("script", "x.py", ROPETEAM_HOOKS="none")
    assert (done.stdout, done.stderr) == ("goes on []\n", "")


def test_a_script_that_imports_neither_gets_nothing(shim, tmp_path):
    (tmp_path / "x.py").write_text(
        "import sys, wave; print([n for n in sys.modules if 'ropeteam' in n or 'torch' in n])"
    )
    done = shim("script", "x.py")
    assert (done.stdout, done.stderr) == ("[]\n", "")

"""The library that a zygote has imported: a forked script finds it, unless its own path leads to another."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from tests.agent.harness import Coordinator, a_plan
from tests.agent.test_fork import ended, zygote_is_warm
from tests.agent.test_late_answers import TORCH

from ropeteam_trainer.agent.processes.spawn import write_shims
from ropeteam_trainer.contract.config import Start

SHOWS = """
import sys
loaded = "ropeteam_trainer" in sys.modules
import ropeteam_trainer
print("imported before:", loaded, "beside the script:", hasattr(ropeteam_trainer, "own"), flush=True)
"""
KINDS = {
    "script": (("x.py",), "."),
    "module": (("-m", "x"), "."),
    "code": (("-c", SHOWS), "."),
    "folder": (("app",), "app"),
}
"""Arguments of `python3`, and the folder that is first in its sys.path."""


@pytest.mark.parametrize("kind", KINDS)
async def test_a_forked_script_uses_the_imported_library_unless_one_lies_beside_it(
    make_pod: Any, coordinator: Coordinator, kind: str
):
    """A stub of torch: the library does not matter here, but where it is found."""
    pod = make_pod(start=Start.FORK)
    stub = pod.folder / "stub" / "torch"
    stub.mkdir(parents=True)
    for name, text in (TORCH | {"distributed.py": ""}).items():
        (stub / name).write_text(text)
    command, place = KINDS[kind]
    (pod.folder / "app").mkdir()
    (pod.folder / "app" / "__main__.py").write_text(SHOWS)
    (pod.folder / "x.py").write_text(SHOWS)
    pod.start("python3", *command, ROPETEAM_STORE="", PYTHONPATH=str(stub.parent))
    await zygote_is_warm(pod)
    coordinator.order(plan=a_plan(1))
    await ended(coordinator, a_plan(1))
    await pod.printed("imported before: True beside the script: False")
    beside = pod.folder / place / "ropeteam_trainer"
    beside.mkdir()
    (beside / "__init__.py").write_text("own = True")
    coordinator.order(plan=a_plan(2))
    await ended(coordinator, a_plan(2))
    await pod.printed("imported before: False beside the script: True")


PROBE = """
import json, sys
root, image = sys.argv[1:]
sys.path.insert(0, root)
from ropeteam_trainer.agent.script import rankmain, zygote
sys.path.insert(0, image)
path, own = [*sys.path], zygote._modules_of_ours()
found = zygote._imported_library(root)
unchanged = (sys.path, zygote._modules_of_ours()) == (path, own)
print(json.dumps([sorted(found), unchanged]))
"""


@pytest.mark.parametrize(
    ("modules", "found"),
    [
        ({"__init__.py": "", "job.py": ""}, ["ropeteam_trainer", "ropeteam_trainer.job"]),
        ({"__init__.py": "", "job.py": "1 / 0"}, ["ropeteam_trainer"]),
        ({"__init__.py": "1 / 0"}, []),
    ],
)
def test_a_zygote_imports_the_library_of_the_image_as_far_as_it_can(
    tmp_path: Path, modules: dict[str, str], found: list[str]
):
    """sys.path and the modules of the zygote itself stay as they are."""
    folders = {name: tmp_path / name for name in ("state", "image/ropeteam_trainer", "probe")}
    for folder in folders.values():
        folder.mkdir(parents=True)
    root = write_shims(folders["state"]).root
    for name, text in modules.items():
        (tmp_path / "image" / "ropeteam_trainer" / name).write_text(text)
    probe = folders["probe"] / "probe.py"
    probe.write_text(PROBE)
    done = subprocess.run(
        [sys.executable, str(probe), root, str(tmp_path / "image")],
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(done.stdout) == [found, True]

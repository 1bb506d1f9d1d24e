"""Accelerate and DeepSpeed themselves, in a folder of their own beside the project's environment.

They run with `make e2e` only: DeepSpeed is built when it is installed, and compiles an operator at its first
start (g++, two minutes on 2 cores, once per cache).
"""

from __future__ import annotations

import itertools
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.e2e.conftest import cluster, name

__all__ = ["cluster", "name"]
collect_ignore_glob = [] if os.environ.get("ROPETEAM_E2E") else ["test_*.py"]
VERSIONS = {"accelerate": "1.15.0", "deepspeed": "0.19.8"}
NEEDED = ["einops", "hjson", "huggingface-hub", "msgpack", "ninja", "py-cpuinfo", "safetensors", "tqdm"]
OURS = ["numpy", "pydantic", "torch"]
"""What the project's environment has already."""


@pytest.fixture(scope="session")
def frameworks() -> Path:
    """The folder, for PYTHONPATH."""
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ropeteam"
    folder = cache / ("frameworks-" + "-".join(itertools.chain(*VERSIONS.items())))
    if not folder.exists():
        draft = folder.with_suffix(".draft")
        shutil.rmtree(draft, ignore_errors=True)
        overrides = cache / "overrides.txt"
        overrides.parent.mkdir(parents=True, exist_ok=True)
        overrides.write_text("".join(f"{each}; python_version < '3'\n" for each in OURS))
        accelerate = f"accelerate=={VERSIONS['accelerate']}"
        install(draft, accelerate, *NEEDED, "setuptools", "wheel", "--overrides", str(overrides))
        deepspeed = f"deepspeed=={VERSIONS['deepspeed']}"
        install(draft, deepspeed, "--no-deps", "--no-build-isolation")
        draft.rename(folder)
    return folder


def install(folder: Path, *words: str) -> None:
    uv = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
    environment = os.environ | {"DS_BUILD_OPS": "0", "DS_ACCELERATOR": "cpu", "PYTHONPATH": str(folder)}
    command = [uv, "pip", "install", "--quiet", "--python", sys.executable, "--target", str(folder), *words]
    done = subprocess.run(command, env=environment, text=True, capture_output=True)
    assert done.returncode == 0, done.stderr

"""Accelerate, Fabric, transformers, DeepSpeed and Composer themselves, beside the project's environment.

Each set is installed once, into a folder of the cache, by the first run that needs it: 15 seconds, and for
DeepSpeed, which compiles an operator for its first start, another minute on two cores. Where that cannot be,
the tests are skipped, and say why.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from tests.e2e.conftest import cluster, name

__all__ = ["cluster", "name"]
SCRIPTS = Path(__file__).parent / "scripts"
FRAMEWORKS = ("accelerate==1.15.0", "lightning-fabric==2.6.6", "transformers==5.23.0")
DEEPSPEED = "deepspeed==0.19.8"
DEEPSPEED_NEEDS = (
    "einops",
    "hjson",
    "msgpack",
    "ninja",
    "packaging",
    "py-cpuinfo",
    "setuptools",
    "tqdm",
    "wheel",
)
COMPOSER = "mosaicml==0.32.1"
COMPOSER_NEEDS = (
    *("torchmetrics<1.7.5", "torch_optimizer", "coolname", "tabulate", "py-cpuinfo", "importlib-metadata"),
    *("mosaicml-cli", "pillow", "tqdm", "setuptools<81"),
)
OURS = ("numpy", "psutil", "pydantic", "torch")
"""Packages that the project's environment has already."""
FIRST_START = "from deepspeed.ops.op_builder.all_ops import ALL_OPS; ALL_OPS['deepspeed_shm_comm'].load()"
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ropeteam"


@pytest.fixture(scope="session")
def frameworks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a job whose script imports Accelerate, Fabric or transformers."""
    folder = CACHE / "-".join(("frameworks", *FRAMEWORKS)).replace("==", "-")
    with Making(folder) as making:
        if making.is_needed:
            making.install(*FRAMEWORKS)
    return with_our_python(environment(folder), folder / "bin", tmp_path_factory.mktemp("programs"))


@pytest.fixture(scope="session")
def composer(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a job that MosaicML's composer starts."""
    folder = CACHE / COMPOSER.replace("==", "-")
    with Making(folder) as making:
        if making.is_needed:
            making.install(*COMPOSER_NEEDS)
            making.install(COMPOSER, "torchvision==0.28.0", "--no-deps")
    return with_our_python(environment(folder), folder / "bin", tmp_path_factory.mktemp("programs"))


@pytest.fixture(scope="session")
def deepspeed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """The environment of a job whose script imports DeepSpeed."""
    folder = CACHE / DEEPSPEED.replace("==", "-")
    found = environment(folder) | {"DS_ACCELERATOR": "cpu", "TORCH_EXTENSIONS_DIR": str(folder / "built")}
    built_for = folder / "built-for"
    with Making(folder) as making:
        if making.is_needed:
            making.install(*DEEPSPEED_NEEDS)
            making.install(DEEPSPEED, "--no-deps", "--no-build-isolation", DS_BUILD_OPS="0", **found)
        if not built_for.exists() or built_for.read_text() != sys.executable:
            making.run([sys.executable, "-c", FIRST_START], **found)
            built_for.write_text(sys.executable)
    return with_our_python(found, folder / "bin", tmp_path_factory.mktemp("programs"))


def environment(folder: Path) -> dict[str, str]:
    path = os.pathsep.join([str(folder), *filter(None, [os.environ.get("PYTHONPATH")])])
    return {"PYTHONPATH": path, "PATH": f"{folder}/bin:{os.environ['PATH']}"}


def with_our_python(variables: dict[str, str], programs: Path, place: Path) -> dict[str, str]:
    """Environment with these variables, and copies of the Python programs first on PATH: the cached ones name
    the Python that installed them, in an environment that may be gone by now.
    """
    for program in programs.iterdir():
        first, _, rest = program.read_bytes().partition(b"\n")
        if first.startswith(b"#!") and b"python" in first:
            copy = place / program.name
            copy.write_bytes(f"#!{sys.executable}\n".encode() + rest)
            copy.chmod(0o755)
    return variables | {"PATH": f"{place}:{variables['PATH']}"}


class Making:
    """One process at a time makes a folder; others wait. An unfinished one is made again."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._finished = folder, folder / "finished"

    def __enter__(self) -> Making:
        CACHE.mkdir(parents=True, exist_ok=True)
        self._lock = (CACHE / f"{self._folder.name}.lock").open("w")
        fcntl.flock(self._lock, fcntl.LOCK_EX)
        self.is_needed = not self._finished.exists()
        if self.is_needed:
            shutil.rmtree(self._folder, ignore_errors=True)
            self._folder.mkdir()
        return self

    def __exit__(self, error: type[BaseException] | None, *_: object) -> None:
        if error is None:
            self._finished.touch()
        self._lock.close()

    def install(self, *requirements: str, **variables: str) -> None:
        overrides = self._folder / "ours.txt"
        overrides.write_text("".join(f"{each}; python_version < '3'\n" for each in OURS))
        uv = shutil.which("uv") or str(Path(sys.executable).with_name("uv"))
        where = ["--python", sys.executable, "--target", str(self._folder), "--overrides", str(overrides)]
        self.run([uv, "pip", "install", "--quiet", *where, *requirements], **variables)

    def run(self, command: list[str], **variables: str) -> None:
        done = subprocess.run(command, env=os.environ | variables, text=True, capture_output=True)
        if done.returncode:
            why = f"exit {done.returncode} of {' '.join(command)}\n{done.stderr[-2000:]}"
            pytest.skip(f"!!! NOT TESTED: {self._folder.name} cannot be installed here: {why}")

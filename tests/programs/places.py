"""Where sources, environments, prepared copies and results of the campaign lie, and how they are made.

Sources come from $ROPETEAM_PROGRAMS_FROM/<owner>+<name>, an exported tree, or from GitHub if
ROPETEAM_PROGRAMS_CLONE=1; nothing of them is ever committed. Everything else is below
~/.cache/ropeteam/programs, made once, and again when what it is made from changes.
Limits: torch and numpy are those of our own interpreter.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import sysconfig
from collections.abc import Callable
from pathlib import Path

from tests.programs.rows import Project, Row

HERE = Path(__file__).parent
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "ropeteam" / "programs"
OURS = ("numpy", "torch", "torchaudio", "torchvision", "triton")
"""Never installed as what something else needs; `bare` may name torchvision."""
_TORCHRUN = "#!{python}\nimport sys\nfrom torch.distributed.run import main\nsys.exit(main())\n"


class Missing(Exception):
    """No sources here, or they cannot be made ready: the row says so and is not run."""


def source(project: Project) -> Path:
    """The checkout of a project. Raises Missing."""
    if not project.repo:
        return HERE / "scripts"
    name = project.repo.replace("/", "+")
    given = Path(os.environ.get("ROPETEAM_PROGRAMS_FROM", "/nowhere")) / name
    if given.is_dir():
        return given
    place = CACHE / "sources" / f"{name}-{project.commit[:12]}"
    if place.is_dir():
        return place
    if os.environ.get("ROPETEAM_PROGRAMS_CLONE") != "1":
        raise Missing(
            f"no sources of {project.repo}: put them in $ROPETEAM_PROGRAMS_FROM/{name}, "
            "or allow to clone them with ROPETEAM_PROGRAMS_CLONE=1"
        )

    def clone(folder: Path) -> None:
        url = f"https://github.com/{project.repo}"
        _run(["git", "clone", "--quiet", "--filter=blob:none", url, str(folder)], CACHE)
        _run(["git", "checkout", "--quiet", project.commit], folder)

    return _made(place, project.commit, clone)


def interpreter(project: Project) -> Path:
    """The bin folder of the project's environment: our torch, its packages, our witness."""
    text = repr((sys.executable, project.packages, project.bare, OURS))

    def make(folder: Path) -> None:
        _run([sys.executable, "-m", "venv", "--without-pip", str(folder)], CACHE)
        python, site = folder / "bin" / "python", next((folder / "lib").glob("python3*/site-packages"))
        (site / "zz_ours.pth").write_text(sysconfig.get_path("purelib") + "\n")
        (folder / "bin" / "torchrun").write_text(_TORCHRUN.format(python=python))
        (folder / "bin" / "torchrun").chmod(0o755)
        overrides = folder / "ours.txt"
        overrides.write_text("".join(f"{each}; python_version < '3'\n" for each in OURS))
        install = [shutil.which("uv") or str(Path(sys.executable).with_name("uv")), "pip", "install"]
        install += ["--quiet", "--python", str(python)]
        if project.packages:
            _run([*install, "--overrides", str(overrides), *project.packages], CACHE)
        if project.bare:
            _run([*install, "--no-deps", "--no-build-isolation", *project.bare], CACHE)

    name = f"{project.name}-{hashlib.sha256(text.encode()).hexdigest()[:8]}"  # one per interpreter of ours
    folder = _made(CACHE / "venvs" / name, text, make)
    site = next((folder / "lib").glob("python3*/site-packages"))
    shutil.copy(HERE / "witness.py", site / "_programs_witness.py")
    (site / "_programs_witness.pth").write_text("import _programs_witness\n")
    return folder / "bin"


def prepared(row: Row, programs: Path) -> Path:
    """A copy of the checkout in which the row's `prepare` has run, without the network if it needs none."""
    origin = source(row.project)
    script = (HERE / "cuda_to_cpu.sed").read_text()
    data = (HERE / "tiny.py").read_text() if "$TINY" in "".join(row.prepare) else ""
    ours = [] if row.project.repo else sorted((each.name, each.read_text()) for each in origin.glob("*.py"))
    text = repr((row.project.commit, row.prepare, row.cpu, row.folder, script if row.cpu else "", data, ours))

    def make(folder: Path) -> None:
        shutil.copytree(origin, folder, symlinks=True, ignore=shutil.ignore_patterns(".git"))
        where = folder / row.folder
        for file in row.cpu:
            _run(["sed", "-E", "-i", "-f", str(HERE / "cuda_to_cpu.sed"), file], where)
        path = f"{programs}:{os.environ['PATH']}"
        for line in row.prepare:
            _run(["bash", "-ec", line], where, PATH=path, TINY=str(HERE / "tiny.py"))

    name = f"{row.project.name}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"  # rows may share it
    return _made(CACHE / "prepared" / name, text, make)


def fresh(row: Row, programs: Path, folder: Path) -> None:
    """A copy of that for one run, as `folder`: what an earlier run saved is not there."""
    shutil.rmtree(folder, ignore_errors=True)
    shutil.copytree(prepared(row, programs), folder, symlinks=True)


def _made(folder: Path, text: str, make: Callable[[Path], None]) -> Path:
    """The folder, made by `make` unless it was made from the same text before."""
    mark = folder.with_name(folder.name + ".made")
    digest = hashlib.sha256(text.encode()).hexdigest()
    folder.parent.mkdir(parents=True, exist_ok=True)
    with folder.with_name(folder.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # another campaign waits, and finds it made
        if not (mark.exists() and mark.read_text() == digest and folder.is_dir()):
            mark.unlink(missing_ok=True)
            shutil.rmtree(folder, ignore_errors=True)
            make(folder)
            mark.write_text(digest)
    return folder


def _run(command: list[str], folder: Path, **variables: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"} | variables
    done = subprocess.run(command, cwd=folder, env=environment, text=True, capture_output=True)
    if done.returncode:
        raise Missing(f"exit {done.returncode} of {' '.join(command)}\n{(done.stdout + done.stderr)[-1500:]}")

"""Start a process that dies with the agent, and write the few shim files that the job's interpreter runs."""

from __future__ import annotations

import importlib.resources
import os
import subprocess
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import ropeteam_trainer
from ropeteam_trainer.agent import script
from ropeteam_trainer.agent.processes import proc

# The code of a shim file. `root`: see Shims.root.
_SHIM = """\
import sys
sys.path.insert(0, {root!r})
from ropeteam_trainer.agent.script.{module} import main
main({root!r}, {arguments})
"""


@dataclass(frozen=True)
class Shims:
    """Paths of the files that start ropeteam_trainer in another interpreter."""

    root: str
    """Folder of our package and nothing else: appended to sys.path of ranks."""
    rank: str
    """Script that runs rankmain.py."""
    zygote: str
    """Script that runs zygote.py."""
    site: str
    """Folder of our `sitecustomize`: first in PYTHONPATH of ranks."""

    def python_path(self, base: Mapping[str, str]) -> str:
        """PYTHONPATH of a rank: our folder, then that of `base`, which the user set."""
        return os.pathsep.join(filter(None, (self.site, base.get("PYTHONPATH"))))


def write_shims(folder: Path) -> Shims:
    """Write the files into an empty folder, for all ranks and the zygote of one agent. Raises OSError."""
    package = Path(ropeteam_trainer.__file__).parent
    root = package.parent
    if not root.is_file():
        # From source or a wheel: beside our package lie others that are not meant for the job's interpreter.
        root = folder / "lib"
        root.mkdir()
        (root / package.name).symlink_to(package)
    rank, zygote = folder / "rank.py", folder / "zygote.py"
    rank.write_text(_SHIM.format(root=str(root), module="rankmain", arguments="sys.argv[1], sys.argv[2:]"))
    zygote.write_text(_SHIM.format(root=str(root), module="zygote", arguments="int(sys.argv[1])"))
    site = folder / "site"
    site.mkdir()
    for source, name in (("childhooks.py", "sitecustomize.py"), ("reporting.py", "_ropeteam_reporting.py")):
        (site / name).write_bytes(importlib.resources.files(script).joinpath(source).read_bytes())
    return Shims(str(root), str(rank), str(zygote), str(site))


def spawn(
    argv: Sequence[str],
    environment: Mapping[str, str],
    output: int | None = None,
    inherit: tuple[int, ...] = (),
    cwd: str = "",
) -> int:
    """Start a child in a session of its own, and return its pid. The kernel kills it when the agent dies; the
    caller lets the reaper watch it.

    `output`: descriptor of its stdout and stderr; None: the agent's. `inherit`: further descriptors that it
    gets. `cwd`: its folder, relative to the agent's. Raises OSError, ValueError (a NUL in an argument) or
    subprocess.SubprocessError.
    """
    me = os.getpid()
    with warnings.catch_warnings():
        # preexec_fn may deadlock if another thread holds a lock. The agent's threads only wait for disks and
        # pipes, and the child makes one system call before it execs.
        warnings.simplefilter("ignore", DeprecationWarning)
        process = subprocess.Popen(
            argv,
            env=environment,
            cwd=cwd or None,
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=output,
            start_new_session=True,
            pass_fds=inherit,
            preexec_fn=lambda: proc.die_with_parent(me),
        )
    process.returncode = 0  # so that this object never waits for it: the reaper does
    return process.pid

"""TrainingJobs of the local cluster: ranks that tick, and programs."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

SCRIPTS = Path(__file__).parents[1] / "scripts"
PROGRAMS = Path(__file__).parents[2] / "tests" / "programs" / "scripts"
"""Programs of the campaign (tests/programs), which runs each of them in all its ways."""


def ticking(name: str, folder: Path, *arguments: str, workers: int = 2, **spec: Any) -> dict[str, Any]:
    """A TrainingJob of torch-free ranks that count steps into `folder`."""
    folder.mkdir(exist_ok=True)
    return job(name, ["python", str(SCRIPTS / "ticker.py"), str(folder), *arguments], workers=workers, **spec)


def job(
    name: str, command: list[str], *, workers: int = 2, torch: bool = False, **spec: Any
) -> dict[str, Any]:
    env = [] if torch else [{"name": "ROPETEAM_STORE", "value": "none"}]
    return {
        "apiVersion": "ropeteam.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": name},
        "spec": {"workers": workers, "image": "local", "command": command, "env": env, **spec},
    }


def program(name: str, command: list[str], **spec: Any) -> dict[str, Any]:
    """A TrainingJob that runs in the folder of the campaign's own scripts, with our torchrun on its PATH."""
    made = job(name, command, torch=True, workingDir=str(PROGRAMS), **spec)
    path = f"{Path(sys.executable).parent}:{os.environ['PATH']}"
    made["spec"]["env"] = [{"name": "PATH", "value": path}]
    return made

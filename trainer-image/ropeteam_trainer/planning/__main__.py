"""`python -m ropeteam_trainer.planning LAUNCHER WORKERS PROCESSES command...`: run a job's command as one
rank of it would, in place of this process. The answer goes to PLAN_FILE; what lies beside it goes with its
folder.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ropeteam_trainer.agent.processes.spawn import write_shims
from ropeteam_trainer.contract.config import PLAN_FILE, Launcher
from ropeteam_trainer.contract.messages import Problem
from ropeteam_trainer.launchers import Job, Run, analyse
from ropeteam_trainer.partition.answer import Answer
from ropeteam_trainer.planning import answers, shim


def main(launcher: str, job: Job, command: tuple[str, ...]) -> None:
    found = analyse(command, Launcher(launcher), job)
    if isinstance(found, Problem):
        answers.write(Answer(refused=(f"command: {found.message}",)))
    elif found.run is Run.COMMAND:
        answers.write(Answer(without_wrap=f"is started by `{command[0]}`, which is not looked into"))
    else:
        python = found.python or sys.executable
        root = write_shims(Path(os.environ[PLAN_FILE]).parent).root
        argv = [
            *found.wrapper,
            python,
            *found.flags,
            shim.__file__,
            root,
            found.run.value,
            *found.arguments(0),
        ]
        os.chdir(found.cwd or ".")
        os.execvpe(argv[0], argv, os.environ | dict(found.env))


if __name__ == "__main__":
    main(sys.argv[1], Job(int(sys.argv[2]), int(sys.argv[3])), tuple(sys.argv[4:]))

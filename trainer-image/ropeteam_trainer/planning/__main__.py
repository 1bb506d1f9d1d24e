"""`python -m ropeteam_trainer.planning LAUNCHER WORKERS PROCESSES command...`: run a job's command as a dry
run of one rank, in place of this process. The result is written to DRY_RUN_FILE; temporary files are written
beside it and deleted with its folder.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from ropeteam_trainer.agent.processes.spawn import write_shims
from ropeteam_trainer.contract.config import DRY_RUN_FILE, Launcher
from ropeteam_trainer.contract.messages import Problem
from ropeteam_trainer.launchers import JobSize, Run, analyse
from ropeteam_trainer.partition.answer import DryRunResult
from ropeteam_trainer.planning import answers, shim


def main(launcher: str, job: JobSize, command: tuple[str, ...]) -> None:
    """Replace this process by the script under the shim. Returns, with a result written, if the command is
    refused or its script is unknown. Raises OSError if the interpreter cannot be started."""
    launch = analyse(command, Launcher(launcher), job)
    if isinstance(launch, Problem):
        answers.write_result(DryRunResult(refused=(f"command: {launch.message}",)))
    elif launch.run is Run.COMMAND:
        answers.write_result(
            DryRunResult(
                not_run=f"the script was not run: plan cannot look into `{command[0]}`, which starts it; for "
                "a prediction begin spec.command with python or torchrun"
            )
        )
    else:
        python = launch.python or sys.executable
        root = write_shims(Path(os.environ[DRY_RUN_FILE]).parent).root
        argv = [
            *launch.wrapper,
            python,
            *launch.flags,
            shim.__file__,
            root,
            launch.run.value,
            *launch.rank_argv(0),
        ]
        os.chdir(launch.cwd or ".")
        os.execvpe(argv[0], argv, os.environ | dict(launch.env))


if __name__ == "__main__":
    main(sys.argv[1], JobSize(int(sys.argv[2]), int(sys.argv[3])), tuple(sys.argv[4:]))

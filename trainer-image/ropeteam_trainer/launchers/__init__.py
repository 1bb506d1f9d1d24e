"""Parsing of a job's command: the process to start, how often, and its arguments. Pure, stdlib only.

    analyse.py       the analysis of a command
    wrappers.py      commands in front of a launcher; shell.py: shell lines that need no shell
    table.py         the launchers, and their flags that must agree with the job
    parsing.py       a launcher's flags, by options.py (generated)
    interpreter.py   the command line of a Python interpreter
    launch.py        data for starting one process of a job

The agent starts the result; the operator counts ranks by it, and `ropeteam validate` reports refused
commands.
Guarantee: the same result for the same command everywhere. Limits: no file is read.
"""

from ropeteam_trainer.launchers.analyse import analyse, requested_processes
from ropeteam_trainer.launchers.launch import JobSize, Launch, Rendezvous, Run

__all__ = ["JobSize", "Launch", "Rendezvous", "Run", "analyse", "requested_processes"]

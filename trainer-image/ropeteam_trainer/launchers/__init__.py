"""What a job's command means: which process starts how often, and with which words. Pure, stdlib only.

    analyse.py       the answer: what is asked, in which order
    wrappers.py      what stands in front of a launcher; shell.py: lines of a shell that need no shell
    table.py         the launchers, and which of their flags must agree with the job
    parsing.py       a launcher's flags, by options.py (generated)
    interpreter.py   the command line of a Python interpreter
    launch.py        how to start one process of a job

The agent starts what comes of it; the operator counts ranks by it, and `ropeteam validate` tells what is
refused.
Promise: the same answer for the same words, wherever it is asked. Limits: no file is looked into.
"""

from ropeteam_trainer.launchers.analyse import analyse, processes_of
from ropeteam_trainer.launchers.launch import Job, Launch, MeetingPlace, Run

__all__ = ["Job", "Launch", "MeetingPlace", "Run", "analyse", "processes_of"]

"""What a job's command means: which process starts how often, and with which words. Pure, stdlib only.

Order: analyse.py asks wrappers.py and shell.py what stands in front, then table.py for the launcher, whose
flags parsing.py reads by options.py (generated). The agent starts what comes of it; the operator counts ranks
by it, and `ropeteam validate` tells what is refused.
Promise: the same answer for the same words, wherever it is asked. Limits: no file is looked into.
"""

from ropeteam_trainer.launchers.analyse import analyse, processes_of
from ropeteam_trainer.launchers.launch import Job, Launch, MeetingPlace, Run

__all__ = ["Job", "Launch", "MeetingPlace", "Run", "analyse", "processes_of"]

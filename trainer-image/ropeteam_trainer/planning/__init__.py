"""A script's rehearsal for `ropeteam plan`: it runs up to job.wrap(), and says what it would train.

__main__.py    which file or module the job's command runs
shim.py        around the script: no real process group, no training
rehearsal.py   the Job that init() gives it
measure.py     a real wrap(), on the meta device, in a world that talks to nobody
answers.py     where the answer goes
"""

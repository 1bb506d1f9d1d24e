"""Dry run of a script for `ropeteam plan`: it runs up to job.wrap(), and reports what it would train.

__main__.py    finds the file or module that the job's command runs
shim.py        runs the script without a real process group and without training
dryrun.py      the Job that init() returns in a dry run
measure.py     a real wrap(), on the meta device, in a world without communication
answers.py     output of the result
"""

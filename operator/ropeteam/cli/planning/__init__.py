"""`ropeteam plan`: the predicted cost of jobs.

planned.py   the plans of one or more jobs, on the terminal
dryrun.py    the script, run up to job.wrap()
cost.py      a spec and the result of its dry run in, lines out
"""

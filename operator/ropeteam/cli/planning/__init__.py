"""`ropeteam plan`: the predicted cost of jobs.

planned.py    the plans of one or more jobs, on the terminal
rehearse.py   the script, run up to job.wrap()
cost.py       a spec and its script's answer in, lines out
"""

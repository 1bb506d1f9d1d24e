"""`ropeteam plan`: what jobs would cost.

planned.py    the plans of one or more jobs, on the terminal
rehearse.py   the script, run up to job.wrap()
cost.py       a spec and what its script answered in, lines out
"""

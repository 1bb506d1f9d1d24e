"""What is shown of a job.

jobview.py   what a person wants to see of it
screen.py    a live view, or plain lines
follow.py    looks at a job again and again
logs.py      what ranks print
report.py    what is said when a job has ended
inspect.py   `snapshot` and `explain`; redaction.py: what may be secret, hidden
"""

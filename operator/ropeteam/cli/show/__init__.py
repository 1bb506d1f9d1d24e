"""Views of a job.

jobview.py   the fields that are shown to a person
screen.py    a live view, or plain lines
follow.py    polls a job
logs.py      output of ranks
summary.py   summary of a job that has ended
inspect.py   `snapshot` and `explain`; redaction.py: masks what may be secret
"""

"""The questions of `decide`: a function `*_answer` each, which returns an Answer, or None if it does not
apply.

answer.py       the answer to a question
acceptance.py   is the spec accepted?
completion.py   has the job ended, or is it being deleted?
gang.py         start, drain, stop and restart of all pods
recovery.py     successors of lost pods
handover.py     a terminating pod and its successor
release.py      a gang that is scheduled only in part
steady.py       a started job: what is missing, what is superseded
pending.py      does a started job run, and what keeps it from running?
live.py         state and conditions of a started job, in one answer
degraded.py     what is wrong with a job that continues
desired.py      the desired state that the coordinator receives
idle.py         pods that certainly train nothing, though no decision can be made
"""

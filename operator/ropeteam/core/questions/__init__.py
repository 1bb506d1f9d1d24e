"""The questions that `decide` asks, one file each: the answer is a status or actions, and always a sentence.

answer.py       what a question answers
completion.py   has the job ended?
gang.py         start, drain, stop and restart of all pods
recovery.py     successors of what is lost
handover.py     a pod that is asked to leave, and its successor
release.py      a gang of which only a part finds room
steady.py       a started job: what is missing, what is superseded
pending.py      a started job that does not run, and why
degraded.py     what is odd about a job although it goes on
desired.py      what the coordinator is told
idle.py         pods that certainly train nothing, though no decision can be made
"""

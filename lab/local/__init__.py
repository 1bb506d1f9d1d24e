"""The local cluster, driven from outside as a user does.

cluster.py    `ropeteam up` as a process, and a client of its API
releases.py   the same with operators of two releases
jobs.py       TrainingJobs for it
steps.py      steps that ranks have logged
failures.py   ways in which a job fails
client.py     HTTP on the wire of an API server in this process
"""

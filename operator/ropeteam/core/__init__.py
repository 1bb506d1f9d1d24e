"""Every decision of the operator. Pure: no clock, no cluster, no environment; time comes in as
`Observation.now`.

    decide.py      observation in, decision out: asks the questions in order, the first answer wins
    seen/          what was observed, and how it is read
    objects/       the objects that a job needs, and the actions on them
    status/        what status says: conditions, incidents, progress
    questions/     has it ended, does it start, what is lost, what is missing: one file each
    merge.py       the observation folded into status
    deadlines.py   when to look again although nothing happens
    backoff.py     how long to wait before trying the same again
    decision.py    what decide returns
    announce.py    Kubernetes events of a change of status
    doctor/        what `ropeteam doctor` thinks of a cluster, a namespace and a job
"""

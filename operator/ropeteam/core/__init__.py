"""Every decision of the operator. Pure: no clock, no cluster, no environment; time comes in as
`Observation.now`.

    decide.py      observation in, decision out: tries the questions in order, the first answer wins
    seen/          the observation, and how it is read
    objects/       the objects that a job needs, and the actions on them
    status/        the parts of status: conditions, incidents, progress
    questions/     has the job ended, does it start, what is lost, what is missing: one file each
    merge.py       the observation merged into status
    deadlines.py   when to look again although nothing happens
    backoff.py     the pause before another try
    decision.py    the result of decide
    announce.py    Kubernetes events of a change of status
    doctor/        the checks of `ropeteam doctor` on a cluster, a namespace and a job
"""

"""Roles of a rank in its job: the part of Job's methods in which they differ. joining.py chooses one.

role.py        RankRole, what each role does; Session, what each has
collective.py  a rank that trains by collectives, or alone
worker.py      a worker that trains with parameter servers
server.py      a parameter server
end.py         the end of a script: save the steps since the last checkpoint
"""

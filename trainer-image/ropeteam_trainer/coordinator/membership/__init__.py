"""Which processes form the world: every decision of the coordinator. Pure.

step.py          the phases of a world, one function each
state/           what is known; events
forming.py       what the next world still lacks, and its plan
evidence.py      who or what ended a world
incidents.py     one incident per epoch: its cause, its stages, and what follows from it (backoff, failure,
                 replacement)
preserving.py    with parameter servers: whose ranks live on when a world ends
adoption.py      after a boot: what the coordinator before us had made
progress.py      how far the world came
commits.py       the lineage of checkpoints
drains.py        leaving without losing a step
groups.py        which process groups a world has formed
stage.py         how far a world is on its way to its first step
unstartable.py   pods in which no rank can start
lease.py         the lease under which agents are answered
orders.py        projection: what each agent shall do
report.py        projection: what the operator is told
"""

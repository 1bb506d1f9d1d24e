"""All decisions of the coordinator: which processes form the world. Pure.

step.py          the phases of a world, one function each
state/           the state; events
forming.py       obstacles to the next world, and its plan
evidence.py      evidence of what ended a world
incidents.py     one incident per world: its cause, its stages, and its consequences (backoff, failure,
                 replacement)
preserving.py    with parameter servers: slots whose ranks live on when a world ends
adoption.py      after a boot: adoption of the world of the previous coordinator
progress.py      progress of the world
commits.py       the lineage of checkpoints
drains.py        drains without losing a step
groups.py        process groups that a world has formed
stage.py         stages of a world up to its first step
unstartable.py   pods in which no rank can start
lease.py         whether reports may be answered: the coordinator's lease, and newer coordinators
orders.py        projection: orders for each agent
report.py        projection: the JobReport to the operator
"""

"""Which processes form the world: leases, epochs, plans, commits and the failure allowance of one job.

Order: something happened (an event) -> `membership.step` -> a new State -> `orders` for each agent,
`job_report` for the operator. The judgement is pure; `server` (sockets, HTTP, the clock) has nothing to
decide.
  state.py       what is known; events
  membership.py  step: the phases of a world, one function each
  evidence.py    who or what ended a world
  keeping.py     with parameter servers: whose ranks live on when a world ends
  incidents.py   one incident per epoch: its cause, its stages, and what follows from it (backoff, failure,
  replacement)
  lateness.py    whether we keep up, and what waits when we do not
  commits.py     the lineage of checkpoints
  drains.py      leaving without losing a step
  orders.py      projections: what each agent shall do, what the operator is told
Limits: standard library and prometheus-client; no Kubernetes, no torch; one job per process.
"""

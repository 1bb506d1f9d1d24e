"""One round for one job.

reconciler.py    observe, decide, save, announce, act
observer.py      everything that `decide` may know, gathered into one Observation
executor.py      what was decided, carried out
events.py        Kubernetes events, after the write that made them true
failing.py       rounds that fail again and again for one reason
agentsecret.py   our agent, as worker pods mount it
statuspace.py    how often progress alone is written
jobclock.py      a time of day that no step of a wall clock moves
holders.py       since when a job's coordinator answers
leases.py        for how long no operator can have heard of a coordinator
"""

"""One reconcile of one job.

reconciler.py     observe, decide, save, announce, act
observer.py       the input of `decide`, gathered into one Observation
executor.py       carries out the actions of a decision
events.py         Kubernetes events, after the status that justifies them was saved
failing.py        reconciles that fail repeatedly for one reason
agentsecret.py    the Secret with our agent, which worker pods mount
progresslimit.py  rate limit of status writes that change only progress
jobclock.py       a time of day that no step of a wall clock moves
holders.py        since when a job's coordinator answers, and knows the pod of each slot
leases.py         for how long no operator can have received a report of a coordinator
"""

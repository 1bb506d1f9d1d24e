"""One reconcile of one job.

reconciler.py     read, exchange, observe, check the pod, decide, save, announce, act
jobread.py        the job, its Service and pods, read from the caches
exchange.py       desired state and report, exchanged with the job's coordinator
observer.py       the input of `decide`, put together into one Observation
admission.py      the API server's answer to a dry run of the worker pod
executor.py       carries out the actions of a decision
jobstates.py      what is known of each job from earlier reconciles
created.py        Secret and NetworkPolicy of a job, known from answers to create requests
events.py         Kubernetes events, after the status that justifies them was saved
failing.py        reconciles that fail repeatedly for one reason
agentsecret.py    the Secret with our agent, which worker pods mount
progresslimit.py  rate limit of status writes that change only progress
jobclock.py       a time of day that no step of a wall clock moves
holders.py        since when a job's coordinator answers, and knows the pod of each slot
leases.py         for how long no operator can have received a report of a coordinator
"""

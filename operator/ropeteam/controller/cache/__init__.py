"""What the API server holds, kept here and up to date.

informer.py     list, then watch, then list again when the watch is of no use
caches.py       those that the operator reads: jobs, pods, Services, nodes
parsing.py      raw objects as the values of an Observation (tolerant)
kopfevents.py   what kopf is shown of TrainingJobs
budget.py       how much text of jobs is kept
"""

"""I/O without policy: what the cluster says goes into `core`, what `core` says goes to the cluster.

assembly.py   puts the parts together, and runs them until a signal comes
reconcile/       one job's round: observe, decide, save, announce, act
cache/        what the API server holds, kept up to date
queue/        which job to look at next
client/       the calls to the API server and to coordinators
handlers.py   all that we ask of kopf
election.py   one operator acts at a time
settings.py   flags, environment, defaults
probes.py     /healthz, /readyz, /metrics
metrics.py    what the operator tells Prometheus
output.py     a log that nobody waits for
"""

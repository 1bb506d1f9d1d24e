"""I/O without policy: `core` gets the state of the cluster, the cluster gets the decisions of `core`.

assembly.py   connects the parts, and runs them until a signal comes
reconcile/    one reconcile of one job: observe, decide, save, announce, act
cache/        informers: objects of the API server, kept up to date
queue/        the work queue: which job to reconcile next
client/       requests to the API server and to coordinators
kopfwatch/    kopf: a second watch of TrainingJobs, which finds what the first one missed
election.py   one operator acts at a time
settings.py   flags, environment, defaults
probes.py     /healthz, /readyz, /metrics
metrics.py    the metrics of the operator for Prometheus
output.py     a log that never blocks
"""

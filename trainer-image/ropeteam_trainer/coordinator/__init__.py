"""The coordinator: leases, worlds, plans, commits and the failure allowance of one job.

Order: an event -> `membership.step` -> a new CoordinatorState -> orders for each agent, `job_report` for
the operator.
  membership/        the decisions (pure)
  server.py          the state, the clock, the connections of agents; agentconnection.py: one of them;
                     encoding.py: orders as bytes
  http.py            /desired, /status, /metrics, /healthz; metrics.py: as Prometheus text
  storagehealth.py   health of the coordinator's state folder
  log.py             lines for people and grep
Limits: standard library and prometheus-client; no Kubernetes, no torch; one job per process.
"""

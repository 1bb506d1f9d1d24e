"""Measurements beside peers, taken in one run. `python -m benchmarks --list` names them.

__main__.py            runs them
results.py             rows, samples and provenance in results/NAME.json
pictures.py            pictures of these, on demand
train_*.py             scripts that ranks run, beside lab/scripts
crowd.py               agents without processes, for coordinator.py
idle_clients.py        clients of idle_connections.py
hostile.py             load of tenants.py
killlogs.py            logs of ranks of which one is killed, for recovery.py
jobset.py              JobSet as a peer, for cluster_kills.py
scale/                 an operator with 1,000 jobs and 10,000 pods
Every other module is a benchmark, and says what it measures.
"""

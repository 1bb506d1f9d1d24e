"""Real processes and real clusters, for tests and benchmarks.

waiting.py        polls a condition until it holds
processes.py      processes of this machine, by their environment
olderrelease.py   the releases that upgrades are tested from
kube/             a real Kubernetes on this machine: `python -m lab.kube`
local/            `ropeteam up` as a process, and jobs on it
ranks/            worlds of real ranks, without a cluster
coordinator/      agents without processes, on the real wire
scripts/          scripts of jobs

Neither tests nor benchmarks are imported here, and nothing that is shipped imports this.
"""

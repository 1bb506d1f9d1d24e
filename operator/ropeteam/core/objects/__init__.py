"""The Kubernetes objects that a job needs, and what can be done to them.

actions.py       what the operator can do, idempotent each
manifests.py     the coordinator's pod, Services, Secrets
workerpod.py     the pod of a slot
policy.py        the job's NetworkPolicy
podparts.py      changes to parts of a pod's manifest
poddefaults.py   an installation's defaults for pods
nonroot.py       a worker pod where nothing may run as root
"""

"""Kubernetes objects of a job, and the actions on them.

actions.py            the operator's actions, each idempotent
execution.py          the requests of each action, to whatever carries them out
manifests.py          the coordinator's pod, Services, Secrets
workerpod.py          the pod of a slot
policy.py             the job's NetworkPolicy
trainercontainer.py   the container `trainer` as the user wrote it
podparts.py           changes to parts of a pod's manifest
poddefaults.py        an installation's defaults for pods
nonroot.py            a worker pod where nothing may run as root
"""

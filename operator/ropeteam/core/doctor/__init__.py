"""Findings of `ropeteam doctor`.

findings.py         the type of a finding, and findings of this machine
clusterchecks.py    of a cluster and the installation there
namespacechecks.py  of a namespace for jobs, and of one job
"""

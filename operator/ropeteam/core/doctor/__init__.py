"""Findings of `ropeteam doctor`.

findings.py       the type of a finding, and findings of this machine
installation.py   of a cluster and the installation there
surroundings.py   of a namespace for jobs, and of one job
"""

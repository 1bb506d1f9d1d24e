"""What `ropeteam doctor` thinks.

findings.py       what a finding is, and those of this machine
installation.py   of a cluster and the installation there
surroundings.py   of a namespace for jobs, and of one job
"""

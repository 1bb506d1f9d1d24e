"""The calls to the API server and to coordinators.

access.py        where the API server is, and how we prove who we are
apiclient.py     the API server, as a few calls that are safe to repeat
boundedjson.py   JSON in which tenants had a part, read within bounds
coordinator.py   the one call to a job's coordinator
"""

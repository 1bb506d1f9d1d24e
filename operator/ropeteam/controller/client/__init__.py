"""Clients of the API server and of coordinators.

access.py        address of the API server, and our credentials
apiclient.py     the API server, as a few idempotent requests
boundedjson.py   JSON that tenants may have written, parsed within bounds
coordinator.py   the one request to a job's coordinator
"""

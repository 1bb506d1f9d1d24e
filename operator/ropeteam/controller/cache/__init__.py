"""Caches of objects of the API server, kept up to date.

informer.py   list, watch, and list again when the watch cannot be resumed
caches.py     the caches of the operator: jobs, pods, Services, nodes
parsing.py    raw objects as the values of an Observation (tolerant)
budget.py     limit of the cached text of jobs
"""

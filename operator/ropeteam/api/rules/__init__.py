"""The rules that the schema of one field cannot express, each twice: in CEL for the API server, and in
Python.

rulebook.py   all rules, and the fields that may not change while pods run
command.py    rules about what a job runs
checkpoint.py rules about checkpoints and resuming
elastic.py    rules about a start with fewer workers
mounts.py     rules about what containers mount
validate.py   validation by schema and rules: one sentence for each problem
"""

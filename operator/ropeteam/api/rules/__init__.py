"""The rules that one field alone cannot say, each twice: in CEL for the API server, in Python for the rest.

rulebook.py   one row each
command.py    rows about what a job runs
mounts.py     rows about what containers mount
validate.py   is a TrainingJob good? One sentence for each field that is not
"""

"""Parts of a job's status.

conditions.py   conditions with a reason and a message; their time changes only with their status
incidents.py    incidents, one for each fault, and the failure budget
progress.py     progress of training, and how often it is written
"""

"""What status says of a job.

conditions.py   facts with a reason and a message, flipped only when they flip
incidents.py    what went wrong, once each, and the failure budget
progress.py     how far training is, written now and then
"""

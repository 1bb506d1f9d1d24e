"""Which checkpoints there are, and which one to go on from. Pure.

manifest.py   the file that makes a folder a checkpoint
journal.py    what is committed, what was pruned, and which world may do either
restore.py    which one to go on from
"""

"""Decisions about checkpoints: commit, prune, restore. Pure.

manifest.py   the file that makes a folder a checkpoint
journal.py    what is committed, what was pruned, and which world may do either
restore.py    choice of the checkpoint to resume from
"""

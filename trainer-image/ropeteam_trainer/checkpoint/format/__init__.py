"""Parsers of checkpoint files, which do not trust them.

contents.py      a file of tensors, and the proof that no rank of ours has written it
metadata.py      index of the tensors
picklesizes.py   limit on the size of the objects in a pickle
names.py         names of tensors, which all layouts have in common
"""

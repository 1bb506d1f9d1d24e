"""What the bytes of files say, read without trusting them.

contents.py      a file of tensors, and what is proof that no rank of ours has written it
metadata.py      which tensor is where
picklesizes.py   how large what a pickle makes can become
names.py         names of tensors, which are what all layouts have in common
"""

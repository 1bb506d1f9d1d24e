"""What the standard library does not do: nothing here knows of training.

background.py   the one way to start work that nobody awaits
clocks.py       a clock that goes on while the machine is suspended
folders.py      folders that others can write to, too
lines.py        lines for stdout and stderr, written by a thread
"""

"""Code that runs in the job's interpreter.

rankmain.py     the shim around a user's script: runs it, and reports how it ended
childhooks.py   hooks in every Python process of a rank
reporting.py    what they and the shim send to the agent
hooks.py        additions to libraries that a script imports
zygote.py       a process that has torch imported, and forks
"""

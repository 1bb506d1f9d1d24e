"""Code that runs in the job's interpreter.

rankmain.py     the shim around a user's script: runs it, and reports how it ended
childhooks.py   reports of every Python process of a rank to the agent
hooks.py        additions to libraries that a script imports
zygote.py       a process that has torch imported, and forks
"""

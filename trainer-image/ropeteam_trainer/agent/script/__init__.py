"""What runs in the job's interpreter.

rankmain.py     around a user's script: runs it, and says how it ended
childhooks.py   what every Python process of a rank tells the agent
hooks.py        what is added to libraries that a script imports
zygote.py       a process that has torch imported, and forks
"""

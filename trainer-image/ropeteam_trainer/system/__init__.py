"""Extensions of the standard library: nothing here knows of training. Errors are of contract/errors.py's
tree.

background.py   start of tasks that nobody awaits, and the handler of their exceptions
clocks.py       a clock that runs while the machine is suspended
folders.py      folders that other processes can write to, too
http.py         requests read and responses written by a server
lines.py        lines for stdout and stderr, written by a thread
memory.py       return of freed memory to the kernel
notice.py       lines of ours on a job's stderr
"""

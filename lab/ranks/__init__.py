"""Worlds of real ranks, without a cluster.

processes.py   ranks that fork from a server, and their agent
forkserver.py  that server, with all that is imported there
preload.py     imports of ranks; forked.py: any module in their place
tiny.py        a model small enough for tests
traces.py      what ranks have traced
netns.py       bytes on the wire, in a network namespace
scripts/       scripts of ranks
"""

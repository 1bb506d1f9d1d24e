"""Worlds of real ranks, without a cluster.

processes.py   ranks that fork from a server, and their agent
preload.py     imports of that server; forked.py: any module in its place
tiny.py        a model small enough for tests
traces.py      what ranks have traced
netns.py       bytes on the wire, in a network namespace
scripts/       scripts of ranks
"""

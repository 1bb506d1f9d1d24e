"""Ranks, stores and the zygote: started, watched and reaped.

ranks.py            the ranks of the one world that may live here
rankprocess.py      the agent's end of one rank
launchsettings.py   command line and environment of a rank
stores.py           the TCPStore of each world
zygoteclient.py     the agent's end of the zygote
spawn.py            a process that dies with the agent
reaper.py           the only code that waits for children
proc.py             process trees in /proc, signals, memory and network of processes
page.py             the agent's end of a heartbeat page
ranksocket.py       the socket of one rank
output.py           the output of a rank
memory.py           the folder in memory that outlives ranks
waiting.py          await with a limit
"""

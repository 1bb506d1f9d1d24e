"""Communication of a rank with other ranks and with its agent.

world.py       the process group: joining it, agreeing in it, leaving it without a crash
mates.py       the ranks of one replica; defaultgroup.py: what is in the group's place while others are lost
exchange.py    objects that ranks exchange
agentlink.py   a rank's two channels to its agent
trace.py       for tests: record of each rank's steps
"""

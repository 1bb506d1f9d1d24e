"""A rank among ranks, and beside its agent.

world.py       the process group: joining it, agreeing in it, leaving it without a crash
exchange.py    what ranks tell each other
agentlink.py   a rank's two lines to its agent
trace.py       for tests: what each rank did in each step
"""

"""How a strategy splits a world, and what that costs. Pure.

layout.py   which part of the work each rank does, or why a strategy cannot be used there
cost.py     bytes of memory and on the wire, messages, idle time
answer.py   what a script tells `ropeteam plan` before it would train
"""

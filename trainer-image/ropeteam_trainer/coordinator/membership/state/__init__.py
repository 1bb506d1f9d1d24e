"""What the coordinator knows, as frozen values.

state.py       the whole of it, and the three things that can happen to it
world.py       one formed world: its plan and how far it came
slotset.py     sets of slots as whole numbers
slotfacts.py   what may be true of a slot
slotindex.py   which facts are true of which slots, kept up to date
lateness.py    whether this coordinator keeps up, and what waits when it does not
"""

"""Exactly-once data.

Which samples a rank takes (plan.py, pure), in parts as its speed deserves (balance.py, pure; owntime.py and
balancing.py measure and agree), and taking them (batches.py, prefetch.py). Copies of files of slow storage on
a local disk: cache.py.
"""

from ropeteam_trainer.data.cache import ShardCache

__all__ = ["ShardCache"]

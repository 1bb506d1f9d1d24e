"""Exactly-once data.

decisions/        which samples a rank takes, in parts as its speed deserves (pure)
computetimer.py   how fast this rank works; balancing.py: measured, agreed, changed on all ranks
feed.py           the data of one rank: where it stands
batches.py        samples taken; prefetch.py: ahead of their use
cache.py          copies of files of slow storage on a local disk
"""

from ropeteam_trainer.data.cache import ShardCache

__all__ = ["ShardCache"]

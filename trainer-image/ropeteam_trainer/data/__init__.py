"""Exactly-once data.

decisions/        samples of each rank, in proportion to its speed (pure)
computetimer.py   measures the speed of this rank; balancing.py: parts by speed, changed on all ranks at once
feed.py           the data of one rank, and its position
substitution.py   another batch in the place of the one that the script has
batches.py        loads samples; prefetch.py: ahead of their use
cache.py          copies of files of slow storage on a local disk
"""

from ropeteam_trainer.data.cache import ShardCache

__all__ = ["ShardCache"]

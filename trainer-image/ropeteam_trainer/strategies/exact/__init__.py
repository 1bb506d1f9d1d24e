"""Synchronous data parallelism whose sums do not depend on the number of ranks: sync Exact.

step.py       micro-batches of a step, and what they add to
gradients.py  this replica's part of the tree (partition/reductiontree.py), in buckets
buffers.py    running statistics of BatchNorm
sums.py       sums over the replicas that are members
exchange.py   sums over all replicas, also after one of them is lost; positions.py: what they have then
links.py      connections between replicas, and their thread
joining.py    how these come about; arrivals.py: with new replicas, while the others train
members.py    which replicas are members, and their micro-batches
admitting.py  how new ones become members; following.py: after they have followed the others
decisions.py  what all replicas do after a step
callbacks.py  what a step calls
equality.py   whether all have the same weights

A step is V micro-batches, whose number is in the manifest. Their gradients are added along one binary tree,
wherever they are computed. So 1, 2, 3 or 8 replicas give the same weights, to the last bit.

Example: V = 8 and 100 MB of gradients. What each replica sends in a step, beside a ring all-reduce, and how
many sums it holds at most:

    replicas   leaves     nodes           sums   MB sent   all-reduce
    1          0-7        [0,8)           3      0         0
    2          0-3        [0,4)           2      100       100
    3          0-1        [0,2)           1      133       133
               2-4        [2,4) [4,5)     2      200       133
               5-7        [5,6) [6,8)     2      200       133
"""

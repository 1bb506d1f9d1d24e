"""Which job to look at next.

workqueue.py   client-go's rate-limiting work queue, in asyncio
fairqueue.py   whose turn it is, by namespace
"""

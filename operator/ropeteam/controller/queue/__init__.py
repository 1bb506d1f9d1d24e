"""The order in which jobs are reconciled.

workqueue.py   client-go's rate-limiting work queue, in asyncio
fairqueue.py   fair queuing by namespace
"""

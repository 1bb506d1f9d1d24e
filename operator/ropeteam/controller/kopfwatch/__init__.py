"""kopf: a second watch of TrainingJobs, in a thread of its own. Nothing else imports kopf.

settings.py     kopf without state on objects, events, retries or an end
outline.py      the reduced TrainingJobs that kopf receives
handlers.py     the handlers: login, and a TrainingJob that has changed
thread.py       runs kopf beside the operator's event loop, and starts it again
crosscheck.py   compares the changes that kopf receives with the informer's cache

An example. `lab/mnist` changes, its resourceVersion becomes 812. The informer's watch delivers that, kopf's
watch milliseconds later. The cache contains version 812 by then, and the job is queued already: nothing is
left to do. Suppose that the informer's watch hangs, because a load balancer has forgotten its connection.
Then the cache still contains version 790 ten seconds after kopf has received 812. So that watch is closed and
all jobs are listed. Without kopf, the change would wait until the watch has been silent for 75 seconds.
"""

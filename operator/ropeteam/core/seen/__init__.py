"""The observation of one job, and how it is read.

observation.py           the snapshot: everything that `decide` may read, serialisable
names.py                 names and labels of objects, and so the job that they belong to
classify.py              the class of each pod, current or superseded, and why a pod ended
bounds.py                bounds of a coordinator's report: what of it is accepted
view.py                  one observation, read once
previouscoordinators.py  coordinators of earlier terms that may still live
unservedrequests.py      requests of a job that no controller is seen to serve
"""

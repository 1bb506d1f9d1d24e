"""What the operator saw of one job, and how it is read.

observation.py          the snapshot: everything that `decide` may know, serialisable
names.py                what objects are called, and so whose they are
classify.py             what each pod is to the job, and why a pod ended
bounds.py               how much of a coordinator's report is believed
view.py                 one observation, read once
formercoordinators.py   coordinators of earlier terms that may still live
unservedrequests.py     what a job asks for and nobody is seen to serve
"""

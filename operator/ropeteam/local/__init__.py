"""A Kubernetes cluster in one process, for trials and tests: part of the API, pods as processes, Services.

cluster.py     start and stop of the whole cluster
apiserver.py   the HTTP side: paths to verbs, watches, logs, the proxy to Services
watchevents.py events of a watch, as they are sent
api/           semantics of the API (pure, except for the in-memory store)
node/          the one node: pods as processes, and Services
resources.py   the kinds that are served, and errors as a Status; fielderrors.py: errors of single fields
"""

"""A Kubernetes cluster in one process, to try and to test: part of the API, pods as processes, Services.

cluster.py     the whole cluster, to start and stop
apiserver.py   the HTTP side: paths to verbs, watches, logs, the proxy to Services
api/           what the API means (pure, but for the store in memory)
node/          the one node: pods as processes, and Services
resources.py   the kinds that are served, and the one error that all of it speaks
"""

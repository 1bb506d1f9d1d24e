"""A Kubernetes cluster in one process, to try and to test: part of the API, pods as processes, Services."""

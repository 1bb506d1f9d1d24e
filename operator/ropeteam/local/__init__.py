"""A Kubernetes cluster in one process, for trying and testing: part of the API, pods as real processes, Services."""

"""Manifests and folders, read and brought into a cluster.

manifests.py      a manifest: what is wrong with it, and how it gets into a cluster
manifestyaml.py   YAML as Kubernetes understands it
bundle.py         a folder as one immutable ConfigMap
localvolumes.py   where a job's volumes are on this machine
usage.py          slips of a command line, each answered with what to write
"""

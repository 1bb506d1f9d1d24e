"""Manifests and folders, read and created in a cluster.

read.py           a manifest from a file or a command line, and its problems
apply.py          its documents, created in a cluster
manifestyaml.py   YAML as Kubernetes parses it
bundle.py         a folder as one immutable ConfigMap
localvolumes.py   folders of a job's volumes on this machine
usage.py          errors of a command line, each with the correct line
"""

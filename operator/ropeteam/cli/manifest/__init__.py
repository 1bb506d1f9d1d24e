"""Manifests and folders, read and created in a cluster.

manifests.py      a manifest: its problems, and how it is created in a cluster
manifestyaml.py   YAML as Kubernetes parses it
bundle.py         a folder as one immutable ConfigMap
localvolumes.py   folders of a job's volumes on this machine
usage.py          errors of a command line, each with the correct line
"""

"""The API: what users write (`job.py`) and read (`status.py`), and the CRD generated from it. Pure.

model.py        the base of every model
job.py          the spec; strategy.py, podparts.py: parts of it
status.py       the status; conditions.py, columns.py: parts of it
defaults.py     defaults of an installation for the pods of all jobs
quantity.py     Kubernetes' quantities
commands.py     the ranks that a job's command starts
claims.py       the PersistentVolumeClaims that a job names
rule.py         the type of a rule; rules/: all of them, and validation
schema/         models as structural schemas, and values held against them
crd.py          the CustomResourceDefinition; editor.py: the JSON Schema for editors
"""

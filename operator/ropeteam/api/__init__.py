"""What users write (`job.py`) and read (`status.py`), and the CRD generated from it (`crd.py`). Pure.

model.py        the base of every model
job.py          the spec; strategy.py, podparts.py: parts of it
status.py       the status; conditions.py, columns.py: parts of it
defaults.py     what an installation says about the pods of all jobs
quantity.py     Kubernetes' quantities
commands.py     what a job's command says about its ranks
claims.py       the PersistentVolumeClaims that a job names
rule.py         what a rule is; rules/: all of them, and validation
schema/         models as structural schemas, and values held against them
crd.py          the CustomResourceDefinition; editor.py: the JSON Schema for editors
"""

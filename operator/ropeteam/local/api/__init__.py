"""Semantics of the API server of the local cluster.

verbs.py          writes: names, generation, optimistic concurrency, deletion in two phases
validation.py     whether an object may be written
decode.py         parses and checks requests
listing.py        pages, tables; tables.py: the columns of `kubectl get`
selectors.py      labels and fields
patch.py          merge, strategic merge, JSON patch
kinds.py          defaults, rules and schemas of single kinds; rules.py: rules beyond schemas
meta.py           validation of metadata
schema.py         structural schemas: defaults, pruning, validation
trainingjobs.py   TrainingJobs: their CRD, and their rules
discovery.py      groups, resources, OpenAPI
gc.py             garbage collection: objects that go with another
store.py          objects in memory, with one history of events
"""

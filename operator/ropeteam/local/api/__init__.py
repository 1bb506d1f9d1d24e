"""What the API server of the local cluster means by a request.

verbs.py          writes: names, generation, optimistic concurrency, deletion in two phases
validation.py     may an object be written?
decode.py         from a request to what it means
listing.py        pages, tables; tables.py: the columns of `kubectl get`
selectors.py      labels and fields
patch.py          merge, strategic merge, JSON patch
kinds.py          defaults, rules and shapes of single kinds; rules.py: rules that are more
meta.py           what is good metadata
schema.py         structural schemas: defaults, pruning, validation
trainingjobs.py   TrainingJobs: their CRD, and their rules
discovery.py      groups, resources, OpenAPI
gc.py             what goes because something else went
store.py          objects in memory, with one history of events
"""

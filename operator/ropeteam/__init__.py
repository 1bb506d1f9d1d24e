"""The operator: Kubernetes in, Kubernetes out. It knows jobs and pods and never imports torch.

cli/          the commands of `ropeteam`
controller/   I/O without policy: the operator's process
local/        a Kubernetes cluster in one process, to try and to test
core/         every decision of the operator (pure)
api/          what users write and read: kind TrainingJob (pure)
errors.py     the roots of all error classes, and the tree of them
"""

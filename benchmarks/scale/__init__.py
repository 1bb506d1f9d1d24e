"""The operator with 1,000 jobs and with 10,000 pods: `python -m benchmarks.scale`."""

"""What the operator does at the size of 1,000 jobs and of 10,000 pods: `python -m benchmarks.scale`."""

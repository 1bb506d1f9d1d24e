"""I/O without policy: what the cluster says goes into `core`, what `core` says goes to the cluster."""

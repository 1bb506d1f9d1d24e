"""What users write (`job.py`) and read (`status.py`), and the CRD generated from it (`crd.py`)."""

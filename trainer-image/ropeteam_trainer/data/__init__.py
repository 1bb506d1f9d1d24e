"""Exactly-once data: which samples a rank takes (plan.py, pure), and taking them (batches.py)."""

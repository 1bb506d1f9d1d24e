"""Checkpoints: what is on disk (manifest.py, pure), which one to go on from (restore.py, pure), writing (writer.py)."""

"""Measurements beside peers, taken in one run. Each module prints a table and writes results/<name>.json and a picture."""

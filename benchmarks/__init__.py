"""Measurements beside peers, taken in one run. A module prints a table and writes results/<name>.json and a
picture.
"""

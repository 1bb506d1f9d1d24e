"""Samples of each rank. Pure.

plan.py      each sample of each data epoch exactly once
balance.py   parts of a batch in proportion to speed
"""

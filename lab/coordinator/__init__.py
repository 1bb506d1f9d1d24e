"""Agents without processes, for a real coordinator.

reports.py   reports, and an agent that applies its orders at once
link.py      a connection as an agent has it, and the operator's requests
"""

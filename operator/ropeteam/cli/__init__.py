"""The command line of `ropeteam`; main.py has the commands."""

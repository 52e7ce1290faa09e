"""Costs on another machine: what is timed there, the file that it writes, and the plans made for it here."""

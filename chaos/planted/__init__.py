"""Planted bugs: mistakes that people make, put into the processes of a run, to see that the run's checker sees them.

`make planted-bugs`. The production code carries no switch: see `patches.py`.
"""

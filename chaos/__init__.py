"""Faults on purpose: a proxy, a whole stack whose parts can be killed, and kill points at every write and call.

Nothing here is part of the system, and nothing of the system imports it.
"""

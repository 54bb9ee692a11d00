"""Whether every invariant holds, by all that is on record.

`sources/` reads it, `evidence.py` and `task.py` say what it is, `checks/` has the invariants, `run.py` is one audit.
The audit reads tables and ledgers by itself and shares no logic with what it audits.
"""

"""Remote services that can be told to fail: real HTTP, real ledgers, one process.

A call travels `app` → `protocol` (headers, faults) → `ledger` (the rules, one transaction) and back.
What is special to a service is in `services/`; a test or an operator steers through `control`.
"""

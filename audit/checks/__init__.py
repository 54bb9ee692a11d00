"""The invariants, one function each: of rows, events, ledgers, runs, submitters, and of all tasks together."""

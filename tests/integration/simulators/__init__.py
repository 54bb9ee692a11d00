"""The simulators as a real process: protocol, ledgers that survive, and faults that really happen."""

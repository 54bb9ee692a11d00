"""A rehearsal: a definition of one's own goes through kills and faults, its services played by stand-ins."""

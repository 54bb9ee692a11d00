"""The real servers of a local stack, from wheels: PostgreSQL and Temporal."""

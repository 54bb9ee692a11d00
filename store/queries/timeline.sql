-- The timeline of the server that writes here, which rises with each promotion; null on a replica.
SELECT CASE
    WHEN NOT pg_is_in_recovery() THEN ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int
END AS timeline

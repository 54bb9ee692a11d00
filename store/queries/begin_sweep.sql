-- Records that a sweep starts, and until when supervision or the store was out before it, if so: the last sweep finished
-- too long ago, the server was started since, or it is another one. Before the first sweep of all nobody watched.
INSERT INTO sweep (timeline, outage_until)
SELECT
    server.timeline,
    CASE
        WHEN last.finished_at IS NULL THEN greatest(server.started_at, gap.began_at)
        WHEN last.finished_at < gap.began_at OR last.timeline <> server.timeline THEN clock_timestamp()
        WHEN last.finished_at < server.started_at THEN server.started_at
    END
FROM (
    SELECT
        (SELECT max(finished_at) FROM sweep) AS finished_at,
        (SELECT timeline FROM sweep ORDER BY id DESC LIMIT 1) AS timeline
) AS last,
(
    SELECT
        pg_postmaster_start_time() AS started_at,
        ('x' || substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8))::bit(32)::int AS timeline
) AS server,
(SELECT clock_timestamp() - make_interval(secs => %(gap_s)s) AS began_at) AS gap
RETURNING id

-- Records that a sweep starts, and tells how long ago the last one finished.
INSERT INTO sweep DEFAULT VALUES
RETURNING id, (
    SELECT extract(epoch FROM clock_timestamp() - max(finished_at))::float8 FROM sweep
) AS age_s

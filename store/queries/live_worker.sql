-- Whether a worker that has this definition has shown itself within that time. Reads only.
SELECT EXISTS (
    SELECT 1 FROM presence WHERE name = %(name)s AND seen_at > clock_timestamp() - make_interval(secs => %(within_s)s)
) AS live

-- Publishes a version's policies once; later calls only say that a worker has it. Never changes a policy. A worker that
-- has not shown itself for a minute is forgotten.
WITH shown AS (
    INSERT INTO presence AS p (name, version, worker) VALUES (%(name)s, %(version)s, %(worker)s)
    ON CONFLICT (name, version, worker) DO UPDATE SET seen_at = clock_timestamp()
),
forgotten AS (
    DELETE FROM presence
    WHERE
        name = %(name)s AND version = %(version)s AND worker <> %(worker)s
        AND seen_at < clock_timestamp() - interval '1 minute'
)
INSERT INTO definition (name, version, policies)
VALUES (%(name)s, %(version)s, %(policies)s::jsonb)
ON CONFLICT (name, version) DO NOTHING

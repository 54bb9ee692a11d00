-- Publishes a version's policies once; later calls only say that a worker with it is alive. Never changes a policy.
INSERT INTO definition AS d (name, version, policies)
VALUES (%(name)s, %(version)s, %(policies)s::jsonb)
ON CONFLICT (name, version) DO UPDATE SET seen_at = clock_timestamp()
RETURNING d.policies

-- A person's word on a service, against the breaker's own judgement: open, closed, or (null) back to its judgement.
INSERT INTO service AS v (name, forced, forced_by, forced_reason)
VALUES (%(name)s, %(forced)s, %(requester)s, %(reason)s)
ON CONFLICT (name) DO UPDATE SET
    forced = excluded.forced, forced_by = excluded.forced_by, forced_reason = excluded.forced_reason,
    failures = CASE WHEN excluded.forced IS NULL THEN 0 ELSE v.failures END,
    state = CASE WHEN excluded.forced IS NULL THEN 'closed' ELSE v.state END,
    since = clock_timestamp(), probe_task = NULL, probe_until = NULL
RETURNING name

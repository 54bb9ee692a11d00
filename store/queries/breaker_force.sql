-- A person's word on a service, against the breaker's own judgement: open, closed, or (null) back to its judgement, which
-- starts closed. Kept among the alerts too, since the next word overwrites this one (G4).
WITH forced AS (
    INSERT INTO service AS v (name, forced, forced_by, forced_reason)
    VALUES (%(name)s, %(forced)s, %(requester)s, %(reason)s)
    ON CONFLICT (name) DO UPDATE SET
        forced = excluded.forced, forced_by = excluded.forced_by, forced_reason = excluded.forced_reason,
        state = CASE WHEN excluded.forced IS NULL THEN 'closed' ELSE v.state END,
        failures = CASE WHEN excluded.forced IS NULL THEN 0 ELSE v.failures END,
        openings = CASE WHEN excluded.forced IS NULL THEN 0 ELSE v.openings END,
        cause = CASE WHEN excluded.forced IS NULL THEN NULL ELSE v.cause END,
        retry_at = CASE WHEN excluded.forced IS NULL THEN NULL ELSE v.retry_at END,
        since = clock_timestamp(), probe_task = NULL, probe_until = NULL
    RETURNING v.name
)
INSERT INTO alert (kind, message)
SELECT
    'breaker_forced',
    format('service %%s: %%s by %%s: %%s', name, coalesce(%(forced)s, 'auto'), %(requester)s::text, %(reason)s::text)
FROM forced

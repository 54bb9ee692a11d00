-- A person's word on a service, against the breaker's own judgement: open, closed, or (null) back to its judgement, which
-- starts closed. The next word overwrites this one, so it is kept among the service's events, with who, why, before and
-- after; other operators are told by an alert. The same request is carried out once.
WITH seen AS MATERIALIZED (
    SELECT name, coalesce('forced ' || forced, state) AS state_from FROM service
    WHERE name = %(name)s AND NOT EXISTS (SELECT 1 FROM service_event WHERE request = %(request)s)
    FOR UPDATE
),
moved AS (
    UPDATE service AS v SET
        forced = %(forced)s, forced_by = %(requester)s, forced_reason = %(reason)s,
        state = CASE WHEN %(forced)s::text IS NULL THEN 'closed' ELSE v.state END,
        failures = CASE WHEN %(forced)s::text IS NULL THEN 0 ELSE v.failures END,
        openings = CASE WHEN %(forced)s::text IS NULL THEN 0 ELSE v.openings END,
        cause = CASE WHEN %(forced)s::text IS NULL THEN NULL ELSE v.cause END,
        retry_at = CASE WHEN %(forced)s::text IS NULL THEN NULL ELSE v.retry_at END,
        since = clock_timestamp(), probe_task = NULL, probe_until = NULL
    FROM seen AS s
    WHERE v.name = s.name
    RETURNING v.name, s.state_from, coalesce('forced ' || v.forced, v.state) AS state_to
),
logged AS (
    INSERT INTO service_event (service, kind, state_from, state_to, requester, reason, request)
    SELECT name, 'by_hand', state_from, state_to, %(requester)s, %(reason)s, %(request)s FROM moved
)
INSERT INTO alert (kind, message)
SELECT
    'breaker_forced',
    format('service %%s: %%s by %%s: %%s', name, coalesce(%(forced)s, 'auto'), %(requester)s::text, %(reason)s::text)
FROM moved

-- A service has answered: its failures are forgotten; if the task was the probe, its breaker closes.
WITH seen AS MATERIALIZED (
    SELECT name, state
    FROM service
    WHERE
        name = %(name)s
        AND CASE state WHEN 'open' THEN probe_task = %(task_id)s ELSE failures > 0 OR openings > 0 END
    FOR UPDATE
),
moved AS (
    UPDATE service AS v SET
        failures = 0,
        openings = CASE WHEN s.state = 'open' THEN v.openings ELSE 0 END,
        since = CASE WHEN s.state = 'open' THEN clock_timestamp() ELSE v.since END,
        state = 'closed', cause = NULL, retry_at = NULL, probe_task = NULL, probe_until = NULL
    FROM seen AS s
    WHERE v.name = s.name
    RETURNING v.name, s.state
)
INSERT INTO service_event (service, kind, state_from, state_to, task_id)
SELECT name, 'closed', state, 'closed', %(task_id)s
FROM moved WHERE state = 'open'

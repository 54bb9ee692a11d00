-- A service has answered: its failures are forgotten; if the task was the probe, its breaker closes (C8).
UPDATE service AS v SET
    failures = 0,
    openings = CASE WHEN v.state = 'open' THEN v.openings ELSE 0 END,
    since = CASE WHEN v.state = 'open' THEN clock_timestamp() ELSE v.since END,
    state = 'closed', cause = NULL, retry_at = NULL, probe_task = NULL, probe_until = NULL
WHERE
    v.name = %(name)s
    AND CASE v.state WHEN 'open' THEN v.probe_task = %(task_id)s ELSE v.failures > 0 OR v.openings > 0 END
RETURNING name

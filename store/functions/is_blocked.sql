-- Whether the circuit breaker of a service keeps this task from calling it: open, and not the one task that probes.
CREATE FUNCTION is_blocked(called text, task text) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (
        SELECT 1 FROM service AS v
        WHERE
            v.name = called
            AND CASE
                WHEN v.forced IS NULL THEN v.state = 'open' AND v.probe_task IS DISTINCT FROM task
                ELSE v.forced = 'open'
            END
    )
$$;

-- Gives the right to probe an open service to one task that waits for it, once its pause is over, under a lease: of the
-- definitions that the caller has loaded, the one that has waited longest, and rather one that can go on then than one
-- that another open service keeps back as well. While it is held in time, no other. One service at a time: of two
-- that are due together each would go to a task that waits for the other one, too.
WITH due AS MATERIALIZED (
    SELECT v.name
    FROM service AS v
    WHERE
        v.state = 'open' AND v.forced IS NULL AND v.retry_at <= clock_timestamp()
        AND (v.probe_until IS NULL OR v.probe_until <= clock_timestamp())
        AND NOT EXISTS (
            SELECT 1 FROM task AS p WHERE p.task_id = v.probe_task AND p.complete_by > clock_timestamp()
        )
    ORDER BY random()
    LIMIT 1
    FOR UPDATE SKIP LOCKED
),
chosen AS MATERIALIZED (
    SELECT due.name, (
        SELECT t.task_id
        FROM task AS t
        WHERE
            t.locked_by IS NULL AND t.confirmed AND t.state IN ('Pending', 'Compensating')
            AND t.not_before <= clock_timestamp()
            AND (t.definition, t.version) IN (
                SELECT l.definition, l.version
                FROM unnest(%(definitions)s::text[], %(versions)s::int[]) AS l (definition, version)
            )
            AND next_service(t.task_id, t.state = 'Compensating') = due.name
        ORDER BY
            EXISTS (
                SELECT 1 FROM next_services(t.task_id, t.state = 'Compensating') AS n
                WHERE n.service <> due.name AND is_blocked(n.service, t.task_id)
            ),
            t.not_before, t.task_id
        LIMIT 1
    ) AS task_id
    FROM due
),
leased AS (
    UPDATE service AS v SET
        probe_task = c.task_id, probe_until = clock_timestamp() + make_interval(secs => %(lease_s)s)
    FROM chosen AS c
    WHERE v.name = c.name AND c.task_id IS NOT NULL
    RETURNING v.name, v.probe_task, v.probe_until
)
INSERT INTO service_event (service, kind, state_from, state_to, task_id, until)
SELECT name, 'probe', 'open', 'open', probe_task, probe_until FROM leased
RETURNING service

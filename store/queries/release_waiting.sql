-- Lets the tasks that waited for a service go at a pace: none at once, then more and more a second over the ramp, then
-- so many a second. Only where its breaker is about to close: its probe has succeeded, or a person says so.
WITH waiting AS MATERIALIZED (
    SELECT t.task_id, t.state, t.not_before
    FROM task AS t
    WHERE
        t.locked_by IS NULL AND t.confirmed AND t.state IN ('Pending', 'Compensating') AND t.task_id <> %(task_id)s
        AND EXISTS (
            SELECT 1 FROM service AS v
            WHERE
                v.name = %(name)s
                AND CASE WHEN %(by_hand)s THEN is_blocked(v.name, '') ELSE v.state = 'open' AND v.probe_task = %(task_id)s END
        )
        AND next_service(t.task_id, t.state = 'Compensating') = %(name)s
    FOR UPDATE OF t SKIP LOCKED
),
numbered AS (
    SELECT task_id, paced(row_number() OVER (ORDER BY not_before, task_id), %(per_s)s, %(ramp_s)s) AS delay_s
    FROM waiting
),
moved AS (
    UPDATE task AS t SET
        not_before = greatest(t.not_before, clock_timestamp() + make_interval(secs => n.delay_s)),
        last_event = t.last_event + 1
    FROM numbered AS n
    WHERE t.task_id = n.task_id
    RETURNING t.task_id, t.last_event, t.state, t.epoch, n.delay_s
)
INSERT INTO event (task_id, number, kind, state_from, state_to, epoch, actor, detail)
SELECT
    task_id, last_event, 'noted', state, state, epoch, 'breaker',
    jsonb_build_object('service', %(name)s::text, 'delay_s', delay_s)
FROM moved

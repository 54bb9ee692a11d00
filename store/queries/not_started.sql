-- The dispatcher gives a claim back whose run did not start, or may not have: only if none has bound itself yet. Each of
-- one `fault` in a row doubles the pause, and is an alert once an hour; number `most` ends the task with its cause: Error,
-- or CompensationFailed if it is being undone.
WITH held AS MATERIALIZED (
    SELECT t.task_id, t.state, t.epoch, (
        SELECT count(*) FROM event AS e
        WHERE
            e.task_id = t.task_id AND e.kind = 'released' AND e.detail ->> 'fault' = %(fault)s
            AND e.number > coalesce((
                SELECT max(p.number) FROM event AS p
                WHERE
                    p.task_id = t.task_id
                    AND p.kind NOT IN ('claimed', 'released', 'expired', 'noted', 'late_answer')
            ), 0)
    ) AS before
    FROM task AS t
    WHERE
        t.task_id = %(task_id)s AND t.locked_by = %(locked_by)s AND t.claim_nonce = %(nonce)s
        AND t.run_id IS NULL
        AND t.state IN ('Processing', 'Compensating')
),
verdict AS MATERIALIZED (
    SELECT
        CASE
            WHEN held.before + 1 < %(most)s OR %(most)s::int IS NULL
                THEN CASE held.state WHEN 'Processing' THEN 'Pending' ELSE held.state END
            WHEN held.state = 'Processing' THEN 'Error'
            ELSE 'CompensationFailed'
        END AS state,
        least(%(longest_s)s, %(delay_s)s * 2 ^ least(held.before, 20)) AS delay_s
    FROM held
),
-- A start whose answer was lost may have made a run all the same: it is looked for when it must have come.
stale AS (
    INSERT INTO stale_run (attempt, due_at)
    SELECT %(locked_by)s, clock_timestamp() + interval '1 minute' FROM held
    ON CONFLICT DO NOTHING
),
moved AS (
    UPDATE task AS t SET
        state = verdict.state,
        locked_by = NULL, complete_by = NULL,
        not_before = clock_timestamp() + make_interval(secs => verdict.delay_s),
        error = CASE
            WHEN verdict.state IN ('Error', 'CompensationFailed')
                THEN jsonb_build_object('code', %(fault)s::text, 'message', %(cause)s::text)
            ELSE t.error
        END,
        failure_count = t.failure_count + CASE WHEN verdict.state IN ('Error', 'CompensationFailed') THEN 1 ELSE 0 END,
        last_event = t.last_event + 1
    FROM held, verdict
    WHERE t.task_id = held.task_id
    RETURNING t.task_id, t.last_event, t.state, t.epoch
),
alerted AS (
    INSERT INTO alert (kind, task_id, message)
    SELECT %(fault)s::text, moved.task_id, %(message)s::text FROM moved
    WHERE %(message)s::text IS NOT NULL AND NOT alerted_lately(%(fault)s::text)
)
INSERT INTO event (task_id, number, kind, state_from, state_to, epoch, actor, detail)
SELECT
    moved.task_id, moved.last_event,
    CASE moved.state WHEN 'Error' THEN 'failed' WHEN 'CompensationFailed' THEN 'undo_failed' ELSE 'released' END,
    held.state, moved.state, moved.epoch, %(locked_by)s,
    jsonb_strip_nulls(jsonb_build_object('cause', %(cause)s::text, 'fault', %(fault)s::text))
FROM moved, held

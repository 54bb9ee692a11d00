-- A permanent fault of a step, recorded at once by the lock owner: the task goes to Error with an alert, or, where the
-- policy says undo and no pivot has begun, to Compensating, held by nobody. Where no call may have had an
-- effect there is none whose age matters. A step whose definition fails need not have begun, nor even be there; what
-- this attempt reserved for it was not used, so with `unknown` null only earlier attempts count.
WITH held AS MATERIALIZED (
    SELECT task_id, state, epoch FROM held_task(%(task_id)s, %(locked_by)s, %(run_id)s, %(nonce)s)
    WHERE state = 'Processing' AND complete_by > clock_timestamp()
),
at_fault AS MATERIALIZED (
    SELECT
        s.name,
        coalesce(
            %(unknown)s::boolean,
            s.outcome_unknown OR (s.state = 'Running' AND s.epoch <> held.epoch AND s.reserved > 0)
        ) AS unknown
    FROM held INNER JOIN step AS s ON s.task_id = held.task_id AND s.name = %(step)s
    WHERE s.state IN ('NotStarted', 'Running', 'Failed')
),
failed AS (
    UPDATE step AS s SET
        state = CASE s.state WHEN 'Running' THEN 'Failed' ELSE s.state END,
        error = %(error)s::jsonb, outcome_unknown = f.unknown,
        key_since = CASE WHEN f.unknown THEN s.key_since END,
        failure_count = s.failure_count + 1, reserved = 0, reservation = NULL
    FROM at_fault AS f
    WHERE s.task_id = %(task_id)s AND s.name = f.name
    RETURNING s.name, s.pivot AND s.outcome_unknown AS may_have_passed_pivot
),
verdict AS MATERIALIZED (
    SELECT CASE
        WHEN
            %(then)s = 'undo' AND NOT EXISTS (SELECT 1 FROM failed WHERE may_have_passed_pivot)
            AND NOT past_pivot(held.task_id, (SELECT name FROM failed))
            THEN 'Compensating'
        ELSE 'Error'
    END AS state
    FROM held
),
moved AS (
    UPDATE task AS t SET
        state = verdict.state, locked_by = NULL, run_id = NULL, complete_by = NULL,
        progress_at = clock_timestamp(), not_before = undo_from(t.task_id), error = %(error)s::jsonb,
        failure_count = t.failure_count + 1, last_event = t.last_event + 1
    FROM held, verdict
    WHERE t.task_id = held.task_id
    RETURNING t.task_id, t.last_event, t.state, t.epoch
)
INSERT INTO event (task_id, number, kind, state_from, state_to, epoch, actor, detail)
SELECT
    moved.task_id, moved.last_event, 'failed', held.state, moved.state, moved.epoch, %(locked_by)s,
    %(error)s::jsonb || jsonb_build_object('step', %(step)s::text, 'run_id', %(run_id)s::text)
FROM moved, held

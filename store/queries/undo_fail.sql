-- The undo of a step was refused for good: CompensationFailed with an alert; what comes after it is not tried. An
-- undo whose definition fails need not have begun.
WITH held AS MATERIALIZED (
    SELECT task_id, state, epoch FROM held_task(%(task_id)s, %(locked_by)s, %(run_id)s, %(nonce)s)
    WHERE state = 'Compensating' AND complete_by > clock_timestamp()
),
failed AS (
    UPDATE step AS s SET
        state = CASE s.state WHEN 'Undoing' THEN 'UndoFailed' ELSE s.state END,
        error = %(error)s::jsonb, failure_count = s.failure_count + 1,
        reserved = CASE s.state WHEN 'Undoing' THEN 0 ELSE s.reserved END
    FROM held
    WHERE s.task_id = held.task_id AND s.name = %(step)s AND s.state <> 'Undone'
),
entry AS (
    UPDATE compensation AS c SET state = 'Failed', error = %(error)s::jsonb
    FROM held
    WHERE c.task_id = held.task_id AND c.step = %(step)s AND c.state IN ('Logged', 'Undoing', 'Failed')
),
moved AS (
    UPDATE task AS t SET
        state = 'CompensationFailed', locked_by = NULL, run_id = NULL,
        complete_by = NULL, error = %(error)s::jsonb, failure_count = t.failure_count + 1,
        last_event = t.last_event + 1
    FROM held
    WHERE t.task_id = held.task_id
    RETURNING t.task_id, t.last_event, t.state, t.epoch
)
INSERT INTO event (task_id, number, kind, state_from, state_to, epoch, actor, detail)
SELECT
    moved.task_id, moved.last_event, 'undo_failed', held.state, moved.state, moved.epoch, %(locked_by)s,
    %(error)s::jsonb || jsonb_build_object('step', %(step)s::text, 'run_id', %(run_id)s::text)
FROM moved, held

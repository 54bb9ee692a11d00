-- The allowance is spent before the deadline: the lock owner brings the task's deadline forward to now, so that recovery
-- need not wait. The step stays as it is, and its own deadline too; the row looks like any other that expired. What was
-- certainly not sent returns; unless a call may have been done, nothing stays reserved: the next attempt need not ask.
-- It begins no sooner than the service wishes to be called.
WITH held AS MATERIALIZED (
    SELECT task_id, state, epoch FROM held_task(%(task_id)s, %(locked_by)s, %(run_id)s, %(nonce)s)
    WHERE state IN ('Processing', 'Compensating') AND complete_by > clock_timestamp()
),
spent AS (
    UPDATE step AS s SET
        gave_up = true,
        budget_left = s.budget_left
        + CASE WHEN s.state = 'Running' THEN greatest(0, s.reserved - %(sent)s::int) ELSE 0 END,
        undo_budget_left = s.undo_budget_left
        + CASE WHEN s.state = 'Undoing' THEN greatest(0, s.reserved - %(sent)s::int) ELSE 0 END,
        reserved = CASE WHEN %(unknown)s THEN least(s.reserved, %(sent)s::int) ELSE 0 END,
        key_since = CASE WHEN s.state = 'Undoing' OR s.outcome_unknown OR %(unknown)s THEN s.key_since END
    FROM held
    WHERE s.task_id = held.task_id AND s.name = %(step)s
),
moved AS (
    UPDATE task AS t SET
        complete_by = clock_timestamp(), run_id = %(run_id)s,
        not_before = clock_timestamp() + make_interval(secs => %(pause_s)s),
        last_event = t.last_event + 1
    FROM held
    WHERE t.task_id = held.task_id
    RETURNING t.task_id, t.last_event, t.state, t.epoch
)
INSERT INTO event (task_id, number, kind, state_from, state_to, epoch, actor, detail)
SELECT
    task_id, last_event, 'gave_up', state, state, epoch, %(locked_by)s,
    jsonb_build_object('step', %(step)s::text, 'cause', %(cause)s::text, 'run_id', %(run_id)s::text)
FROM moved

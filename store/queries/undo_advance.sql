-- One boundary of an undo run: the undo of step `done` is finished, that of step `begin` in progress with its calls
-- reserved; the task Compensated once the log has nothing left. Only for the holder, in time (F2, F3).
WITH held AS MATERIALIZED (
    SELECT task_id, state, epoch, last_event
    FROM task
    WHERE
        task_id = %(task_id)s AND locked_by = %(locked_by)s AND (run_id IS NULL OR run_id = %(run_id)s)
        AND state = 'Compensating' AND complete_by > clock_timestamp()
),
done AS (
    UPDATE compensation AS c SET state = 'Undone', error = NULL, undone_at = clock_timestamp()
    FROM held
    WHERE c.task_id = held.task_id AND c.step = %(done)s AND c.state = 'Undoing'
    RETURNING c.step
),
step_done AS (
    UPDATE step AS s SET
        state = 'Undone', failure_count = 0, gave_up = false, reserved = 0, reservation = NULL,
        undo_budget_left = s.undo_budget_left + greatest(0, s.reserved - %(calls)s)
    FROM held, done
    WHERE s.task_id = held.task_id AND s.name = done.step AND s.state = 'Undoing'
),
next AS MATERIALIZED (
    SELECT c.step, c.seq
    FROM compensation AS c, held
    WHERE c.task_id = held.task_id AND c.state <> 'Undone' AND c.step IS DISTINCT FROM (SELECT step FROM done)
    ORDER BY c.seq DESC
    LIMIT 1
),
begun AS (
    UPDATE step AS s SET
        failure_count = CASE WHEN s.state = 'Undoing' THEN s.failure_count ELSE 0 END,
        complete_by = CASE
            WHEN s.state = 'Undoing' AND s.epoch = held.epoch THEN s.complete_by
            ELSE greatest(s.complete_by, clock_timestamp() + make_interval(secs => %(within_s)s))
        END,
        state = 'Undoing', epoch = held.epoch, gave_up = false,
        reserved = least(s.undo_budget_left, %(allowance)s),
        undo_budget_left = s.undo_budget_left - least(s.undo_budget_left, %(allowance)s),
        reservation = %(reservation)s
    FROM held, next
    WHERE
        s.task_id = held.task_id AND s.name = next.step AND s.name = %(begin)s AND s.undo_budget_left > 0
        AND s.reservation IS DISTINCT FROM %(reservation)s
        AND (%(done)s::text IS NULL OR EXISTS (SELECT 1 FROM done))
        AND s.state IN ('Running', 'Completed', 'Failed', 'Undoing', 'UndoFailed')
    RETURNING s.name, s.complete_by
),
entry AS (
    UPDATE compensation AS c SET state = 'Undoing', attempts = c.attempts + 1, error = NULL
    FROM held, begun
    WHERE c.task_id = held.task_id AND c.step = begun.name
),
moved AS (
    UPDATE task AS t SET
        state = CASE WHEN EXISTS (SELECT 1 FROM next) THEN t.state ELSE 'Compensated' END,
        state_since = CASE WHEN EXISTS (SELECT 1 FROM next) THEN t.state_since ELSE clock_timestamp() END,
        locked_by = CASE WHEN EXISTS (SELECT 1 FROM next) THEN t.locked_by END,
        run_id = CASE WHEN EXISTS (SELECT 1 FROM next) THEN %(run_id)s END,
        complete_by = CASE WHEN EXISTS (SELECT 1 FROM next) THEN coalesce(
            (SELECT complete_by FROM begun), clock_timestamp() + make_interval(secs => %(claim_within_s)s)
        ) END,
        last_event = t.last_event + 1,
        updated_at = clock_timestamp()
    FROM held
    WHERE
        t.task_id = held.task_id
        AND (EXISTS (SELECT 1 FROM done) OR EXISTS (SELECT 1 FROM begun) OR NOT EXISTS (SELECT 1 FROM next))
    RETURNING t.task_id, t.last_event, t.state, t.epoch
)
INSERT INTO event (task_id, number, kind, state_from, state_to, epoch, actor, detail)
SELECT
    moved.task_id, moved.last_event, CASE moved.state WHEN 'Compensated' THEN 'compensated' ELSE 'undo_advanced' END,
    held.state, moved.state, moved.epoch, %(locked_by)s,
    jsonb_strip_nulls(jsonb_build_object(
        'undone', (SELECT step FROM done), 'began', (SELECT name FROM begun), 'calls', %(calls)s::int
    ))
FROM moved, held

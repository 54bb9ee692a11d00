-- A person repairs one entry of the compensation log of a task that nobody holds: skips it with a reason, or closes it as
-- undone by hand, with evidence; not while the step's own call may be on its way, which nobody can have seen.
-- The task is Compensating again, so that the rest is undone; no quarantine of the rest is cut short. If its undo had
-- failed, the rest gets new keys, as a service may repeat its refusal of the old ones.
WITH movable AS MATERIALIZED (
    SELECT t.task_id, t.state, t.epoch, c.seq, c.step
    FROM task AS t
    INNER JOIN compensation AS c ON c.task_id = t.task_id AND c.step = %(step)s
    INNER JOIN step AS s ON s.task_id = c.task_id AND s.name = c.step
    WHERE
        t.task_id = %(task_id)s AND t.locked_by IS NULL AND t.state IN ('Compensating', 'CompensationFailed')
        AND (
            c.state IN ('Logged', 'Undoing', 'Failed')
            OR (c.state = 'Skipped' AND %(target)s = 'ClosedByHand')
        )
        AND (
            %(target)s <> 'ClosedByHand' OR s.completed_at IS NOT NULL
            OR s.complete_by + late_call_margin() <= clock_timestamp()
        )
),
entry AS (
    UPDATE compensation AS c SET
        state = %(target)s, undone_at = CASE %(target)s WHEN 'ClosedByHand' THEN clock_timestamp() END,
        note = jsonb_strip_nulls(jsonb_build_object(
            'by', %(requester)s::text, 'reason', %(reason)s::text, 'evidence', %(evidence)s::text
        ))
    FROM movable AS m
    WHERE c.task_id = m.task_id AND c.seq = m.seq
),
rest AS (
    UPDATE compensation AS c SET generation = c.generation + 1
    FROM movable AS m
    WHERE
        c.task_id = m.task_id AND c.seq <> m.seq AND m.state = 'CompensationFailed'
        AND c.state IN ('Logged', 'Undoing', 'Failed')
),
step_closed AS (
    UPDATE step AS s SET
        state = CASE WHEN %(target)s = 'ClosedByHand' THEN 'Undone' ELSE 'UndoFailed' END,
        error = CASE WHEN %(target)s = 'ClosedByHand' THEN NULL ELSE s.error END,
        reserved = 0, reservation = NULL, gave_up = false
    FROM movable AS m
    WHERE s.task_id = m.task_id AND s.name = m.step AND (%(target)s = 'ClosedByHand' OR s.state = 'Undoing')
),
moved AS (
    UPDATE task AS t SET
        state = 'Compensating',
        not_before = greatest(undo_from(t.task_id), (
            SELECT max(c.quarantined_until) FROM compensation AS c
            WHERE c.task_id = t.task_id AND c.seq <> m.seq AND c.state IN ('Logged', 'Undoing', 'Failed')
        )),
        progress_at = clock_timestamp(), failure_count = 0, error = NULL,
        last_event = t.last_event + 1
    FROM movable AS m
    WHERE t.task_id = m.task_id
    RETURNING t.task_id, t.last_event, t.state, t.epoch
)
INSERT INTO event (task_id, number, kind, state_from, state_to, epoch, actor, detail)
SELECT
    moved.task_id, moved.last_event, 'undo_repaired', movable.state, moved.state, moved.epoch, %(requester)s,
    jsonb_strip_nulls(jsonb_build_object(
        'step', movable.step, 'as', %(target)s::text, 'reason', %(reason)s::text, 'evidence', %(evidence)s::text,
        'request', %(request)s::text
    ))
FROM moved, movable

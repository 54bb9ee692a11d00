-- One boundary of an undo run: the undo of step `done` is finished, that of step `begin` in progress with its calls
-- reserved, unless the breaker of its service is open. At a service without tombstones the first undo of a step only
-- begins a quarantine, after which it is undone once more, under a new key, as the service may repeat its answer to
-- the old one: the row is given back until then. Once nothing is left the task is Compensated; or CompensationFailed if
-- a person skipped an entry. Only for the lock owner, in time.
WITH held AS MATERIALIZED (
    SELECT task_id, state, epoch FROM held_task(%(task_id)s, %(locked_by)s, %(run_id)s, %(nonce)s)
    WHERE state = 'Compensating' AND complete_by > clock_timestamp()
),
answered AS MATERIALIZED (
    SELECT c.task_id, c.seq, c.step, CASE WHEN c.quarantined_until IS NULL THEN s.quarantine_s END AS quarantine_s
    FROM held
    INNER JOIN compensation AS c ON c.task_id = held.task_id AND c.step = %(done)s AND c.state = 'Undoing'
    INNER JOIN step AS s ON s.task_id = c.task_id AND s.name = c.step
),
quarantined AS (
    UPDATE compensation AS c SET
        quarantined_until = clock_timestamp() + make_interval(secs => a.quarantine_s), generation = c.generation + 1
    FROM answered AS a
    WHERE c.task_id = a.task_id AND c.seq = a.seq AND a.quarantine_s IS NOT NULL
    RETURNING c.step, c.quarantined_until
),
done AS (
    UPDATE compensation AS c SET state = 'Undone', error = NULL, undone_at = clock_timestamp()
    FROM answered AS a
    WHERE c.task_id = a.task_id AND c.seq = a.seq AND a.quarantine_s IS NULL
    RETURNING c.step
),
step_done AS (
    UPDATE step AS s SET
        state = CASE WHEN a.quarantine_s IS NULL THEN 'Undone' ELSE s.state END,
        failure_count = 0, gave_up = false, reserved = 0, reservation = NULL,
        undo_budget_left = s.undo_budget_left + greatest(0, s.reserved - %(calls)s)
    FROM answered AS a
    WHERE s.task_id = a.task_id AND s.name = a.step AND s.state = 'Undoing'
),
next AS MATERIALIZED (
    SELECT c.step, c.seq, c.action
    FROM compensation AS c, held
    WHERE c.task_id = held.task_id AND c.state IN ('Logged', 'Undoing', 'Failed') AND c.step IS DISTINCT FROM (SELECT step FROM done)
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
        AND NOT is_blocked(split_part(next.action, '.', 1), s.task_id)
        AND s.state IN ('Running', 'Completed', 'Failed', 'Undoing', 'UndoFailed')
    RETURNING s.name, s.complete_by
),
entry AS (
    UPDATE compensation AS c SET state = 'Undoing', attempts = c.attempts + 1, error = NULL
    FROM held, begun
    WHERE c.task_id = held.task_id AND c.step = begun.name
),
skipped AS MATERIALIZED (
    SELECT string_agg(c.step, ', ' ORDER BY c.seq DESC) AS steps
    FROM compensation AS c, held
    WHERE c.task_id = held.task_id AND c.state = 'Skipped'
),
target AS MATERIALIZED (
    SELECT
        CASE
            WHEN EXISTS (SELECT 1 FROM quarantined) OR EXISTS (SELECT 1 FROM next) THEN 'Compensating'
            WHEN skipped.steps IS NULL THEN 'Compensated'
            ELSE 'CompensationFailed'
        END AS state,
        EXISTS (SELECT 1 FROM next) AND NOT EXISTS (SELECT 1 FROM quarantined) AS goes_on,
        'left undone on purpose: ' || skipped.steps AS skipped
    FROM skipped
),
moved AS (
    UPDATE task AS t SET
        state = target.state,
        progress_at = CASE WHEN EXISTS (SELECT 1 FROM answered) THEN clock_timestamp() ELSE t.progress_at END,
        locked_by = CASE WHEN target.goes_on THEN t.locked_by END,
        run_id = CASE WHEN target.goes_on THEN %(run_id)s END,
        complete_by = CASE WHEN target.goes_on THEN coalesce(
            (SELECT complete_by FROM begun), clock_timestamp() + make_interval(secs => %(claim_within_s)s)
        ) END,
        not_before = coalesce((SELECT quarantined_until FROM quarantined), t.not_before),
        error = CASE
            WHEN target.state = 'CompensationFailed' THEN jsonb_build_object('message', target.skipped) ELSE t.error
        END,
        last_event = t.last_event + 1
    FROM held, target
    WHERE
        t.task_id = held.task_id
        AND (EXISTS (SELECT 1 FROM answered) OR EXISTS (SELECT 1 FROM begun) OR NOT EXISTS (SELECT 1 FROM next))
    RETURNING t.task_id, t.last_event, t.state, t.epoch
)
INSERT INTO event (task_id, number, kind, state_from, state_to, epoch, actor, detail)
SELECT
    moved.task_id, moved.last_event,
    CASE moved.state
        WHEN 'Compensated' THEN 'compensated' WHEN 'CompensationFailed' THEN 'undo_failed' ELSE 'undo_advanced'
    END,
    held.state, moved.state, moved.epoch, %(locked_by)s,
    jsonb_strip_nulls(jsonb_build_object(
        'undone', (SELECT step FROM done), 'began', (SELECT name FROM begun), 'calls', %(calls)s::int,
        'quarantined', (SELECT step FROM quarantined), 'until', (SELECT quarantined_until FROM quarantined),
        'skipped', CASE WHEN moved.state = 'CompensationFailed' THEN target.skipped END, 'run_id', %(run_id)s::text
    ))
FROM moved, held, target

-- One boundary of a forward run: step `done` completed, step `begin` running until its deadline, with its call
-- allowance reserved and its undo logged, unless the breaker of its service is open; the task Processed once no step is
-- left. While all its running steps wait for a later answer, the task fills no slot. Only for the lock owner, in time.
WITH held AS MATERIALIZED (
    SELECT task_id, state, epoch, last_seq FROM held_task(%(task_id)s, %(locked_by)s, %(run_id)s, %(nonce)s)
    WHERE state = 'Processing' AND complete_by > clock_timestamp()
),
done AS (
    UPDATE step AS s SET
        state = 'Completed', result = %(result)s::jsonb, error = NULL, failure_count = 0, gave_up = false,
        budget_left = s.budget_left + greatest(0, s.reserved - %(calls)s), reserved = 0, reservation = NULL,
        completed_at = clock_timestamp()
    FROM held
    WHERE s.task_id = held.task_id AND s.name = %(done)s AND s.state = 'Running' AND s.epoch = held.epoch
    RETURNING s.name
),
begun AS (
    UPDATE step AS s SET
        state = 'Running',
        outcome_unknown = s.outcome_unknown OR (s.state = 'Running' AND s.reserved > 0),
        complete_by = CASE
            WHEN s.state = 'Running' AND s.epoch = held.epoch THEN s.complete_by
            ELSE greatest(s.complete_by, clock_timestamp() + make_interval(secs => %(within_s)s))
        END,
        epoch = held.epoch,
        reserved = least(s.budget_left, %(allowance)s),
        budget_left = s.budget_left - least(s.budget_left, %(allowance)s),
        reservation = %(reservation)s,
        gave_up = false,
        error = NULL,
        key_since = coalesce(s.key_since, clock_timestamp()),
        started_at = coalesce(s.started_at, clock_timestamp())
    FROM held
    WHERE
        s.task_id = held.task_id AND s.name = %(begin)s AND s.state IN ('NotStarted', 'Running', 'Failed')
        AND s.budget_left > 0 AND NOT is_blocked(s.service, s.task_id) AND s.reservation IS DISTINCT FROM %(reservation)s
        AND (%(done)s::text IS NULL OR EXISTS (SELECT 1 FROM done))
    RETURNING s.name, s.complete_by
),
intent AS (
    INSERT INTO compensation AS c (task_id, seq, step, action, request)
    SELECT held.task_id, held.last_seq + 1, begun.name, %(undo_action)s, %(undo_body)s::jsonb
    FROM held, begun
    WHERE %(undo_action)s::text IS NOT NULL
    ON CONFLICT (task_id, step) DO UPDATE SET action = excluded.action, request = excluded.request
),
rest AS MATERIALIZED (
    SELECT
        count(*) FILTER (WHERE s.state <> 'Completed' AND s.name IS DISTINCT FROM (SELECT name FROM done)) AS open_steps,
        min(s.complete_by) FILTER (
            WHERE s.state = 'Running' AND s.epoch = held.epoch
            AND s.name IS DISTINCT FROM (SELECT name FROM done) AND s.name IS DISTINCT FROM (SELECT name FROM begun)
        ) AS earliest,
        bool_and(s.answers_later) FILTER (
            WHERE s.name = (SELECT name FROM begun)
            OR (s.state = 'Running' AND s.epoch = held.epoch AND s.name IS DISTINCT FROM (SELECT name FROM done))
        ) AS waiting
    FROM held INNER JOIN step AS s ON s.task_id = held.task_id
),
moved AS (
    UPDATE task AS t SET
        state = CASE WHEN rest.open_steps = 0 THEN 'Processed' ELSE t.state END,
        locked_by = CASE WHEN rest.open_steps > 0 THEN t.locked_by END,
        run_id = CASE WHEN rest.open_steps > 0 THEN %(run_id)s END,
        complete_by = CASE WHEN rest.open_steps > 0 THEN coalesce(
            least(rest.earliest, (SELECT complete_by FROM begun)),
            clock_timestamp() + make_interval(secs => %(claim_within_s)s)
        ) END,
        progress_at = CASE WHEN EXISTS (SELECT 1 FROM done) THEN clock_timestamp() ELSE t.progress_at END,
        waiting = coalesce(rest.waiting, false),
        failure_count = CASE WHEN rest.open_steps = 0 THEN 0 ELSE t.failure_count END,
        error = NULL,
        last_seq = t.last_seq + (SELECT count(*) FROM begun),
        last_event = t.last_event + 1
    FROM held, rest
    WHERE t.task_id = held.task_id AND (EXISTS (SELECT 1 FROM done) OR EXISTS (SELECT 1 FROM begun))
    RETURNING t.task_id, t.last_event, t.state, t.epoch
)
INSERT INTO event (task_id, number, kind, state_from, state_to, epoch, actor, detail)
SELECT
    moved.task_id, moved.last_event, CASE moved.state WHEN 'Processed' THEN 'processed' ELSE 'advanced' END,
    held.state, moved.state, moved.epoch, %(locked_by)s,
    jsonb_strip_nulls(jsonb_build_object(
        'completed', (SELECT name FROM done), 'began', (SELECT name FROM begun), 'calls', %(calls)s::int,
        'run_id', %(run_id)s::text
    ))
FROM moved, held

-- Carries out one page of the Supervisor's decisions: each row only if the locked_by and the complete_by that were
-- read still stand and the deadline has passed, so no task is recovered twice and no lock owner that moved on is evicted;
-- and only if nothing was written since, as a boundary in the last moment may have begun a pivot. A pause that a
-- service wished for is kept.
-- One second's worth of tasks may go at once; those behind them go when it is over, at the pace that grows over the
-- ramp: counted over all pages and sweeps, no second lets more go than it should.
WITH decision AS MATERIALIZED (
    SELECT d.*
    FROM jsonb_to_recordset(%(decisions)s) AS d (
        task_id text, locked_by text, complete_by timestamptz, last_event int, target text, delay_s float8,
        failed_steps jsonb, outage boolean, cause text
    )
),
expired AS MATERIALIZED (
    SELECT t.task_id, t.state, t.epoch, t.complete_by, d.target, d.delay_s, d.failed_steps, d.outage, d.cause,
        d.locked_by
    FROM task AS t INNER JOIN decision AS d ON d.task_id = t.task_id
    WHERE
        t.locked_by = d.locked_by AND t.complete_by = d.complete_by AND t.last_event = d.last_event
        AND t.complete_by <= clock_timestamp()
    ORDER BY t.task_id
    FOR UPDATE OF t SKIP LOCKED
),
-- Places in the queue that were given before and whose turn has not come. Never too few: the pace is taken to begin
-- only when half of its ramp is over.
ahead AS MATERIALIZED (
    SELECT coalesce(ceil(greatest(
        0, max(since.given - %(per_s)s * greatest(0, since.age_s - 1 - %(ramp_s)s / 2))
    )), 0) AS places
    FROM (
        SELECT
            sum(s.changed) OVER (ORDER BY s.id DESC) AS given,
            extract(epoch FROM clock_timestamp() - s.started_at)::float8 AS age_s
        FROM (SELECT id, changed, started_at FROM sweep ORDER BY id DESC LIMIT 100) AS s
    ) AS since
),
queued AS MATERIALIZED (
    SELECT
        q.task_id,
        q.delay_s * (1 + random() / 4) + CASE
            WHEN q.place > greatest(1, %(per_s)s)
                THEN 1 + paced((q.place - greatest(1, %(per_s)s))::bigint, %(per_s)s, %(ramp_s)s)
            ELSE 0
        END AS delay_s
    FROM (
        SELECT x.task_id, x.delay_s, ahead.places + row_number() OVER (ORDER BY x.complete_by, x.task_id) AS place
        FROM expired AS x, ahead
    ) AS q
),
swept AS (
    UPDATE sweep SET changed = changed + (SELECT count(*) FROM expired) WHERE id = %(sweep)s
),
counted AS (
    UPDATE step AS s SET failure_count = s.failure_count + 1
    FROM expired AS x
    WHERE s.task_id = x.task_id AND x.failed_steps ? s.name
),
-- What did not fail, it only was at work when the attempt ended, is granted as many calls as it had reserved: another
-- step's failure costs it nothing, nor does an outage. It stays reserved, as those calls may have been made.
granted AS (
    UPDATE step AS s SET
        budget = s.budget + g.calls, budget_left = s.budget_left + g.calls,
        undo_budget = s.undo_budget + g.undo_calls, undo_budget_left = s.undo_budget_left + g.undo_calls
    FROM (
        SELECT
            w.task_id, w.name, CASE w.state WHEN 'Running' THEN w.reserved ELSE 0 END AS calls,
            CASE w.state WHEN 'Undoing' THEN w.reserved ELSE 0 END AS undo_calls
        FROM expired AS x INNER JOIN step AS w ON w.task_id = x.task_id AND w.epoch = x.epoch
        WHERE w.state IN ('Running', 'Undoing') AND w.reserved > 0 AND NOT x.failed_steps ? w.name
    ) AS g
    WHERE s.task_id = g.task_id AND s.name = g.name
    RETURNING s.task_id, s.name, g.calls + g.undo_calls AS calls
),
moved AS (
    UPDATE task AS t SET
        state = x.target,
        progress_at = CASE WHEN x.target IN (t.state, 'Pending') THEN t.progress_at ELSE clock_timestamp() END,
        locked_by = NULL, run_id = NULL, complete_by = NULL,
        not_before = greatest(
            t.not_before,
            CASE WHEN x.target = 'Compensating' THEN undo_from(t.task_id) END,
            clock_timestamp() + make_interval(secs => q.delay_s)
        ),
        failure_count = t.failure_count + CASE WHEN jsonb_array_length(x.failed_steps) > 0 THEN 1 ELSE 0 END,
        -- An undo that goes on keeps the reason for which it was begun: how it fared is in its events.
        error = CASE
            WHEN t.state = 'Compensating' AND x.target = 'Compensating' THEN t.error
            ELSE jsonb_build_object('message', x.cause, 'steps', x.failed_steps)
        END,
        last_event = t.last_event + 1
    FROM expired AS x INNER JOIN queued AS q ON q.task_id = x.task_id
    WHERE t.task_id = x.task_id
    RETURNING t.task_id, t.last_event, t.state, t.epoch, q.delay_s
),
stale AS (
    INSERT INTO stale_run (attempt, given_up)
    SELECT locked_by, target IN ('Error', 'CompensationFailed') FROM expired
    ON CONFLICT DO NOTHING
),
logged AS (
    INSERT INTO event (task_id, number, kind, state_from, state_to, epoch, actor, detail)
    SELECT
        m.task_id, m.last_event, 'expired', x.state, m.state, m.epoch, 'supervisor',
        jsonb_build_object('cause', x.cause, 'failed', x.failed_steps, 'delay_s', m.delay_s, 'held_by', x.locked_by)
        || CASE WHEN x.outage THEN '{"outage": true}' ELSE '{}'::jsonb END
        || coalesce((
            SELECT jsonb_build_object('granted', jsonb_object_agg(g.name, g.calls))
            FROM granted AS g WHERE g.task_id = m.task_id
            HAVING count(*) > 0
        ), '{}')
    FROM moved AS m INNER JOIN expired AS x ON x.task_id = m.task_id
)
SELECT m.task_id, x.locked_by
FROM moved AS m INNER JOIN expired AS x ON x.task_id = m.task_id

-- The task as this transaction leaves it, with its steps in order and what is left of its undo log, last begun first.
-- What can be large comes for one step only: the result of step `done`, or of the one that is to `begin`, and the request of
-- the undo that is to, with what its step returned. A submission that is not confirmed is no task yet.
SELECT
    t.task_id, t.definition, t.version, t.state, t.locked_by, t.run_id, t.claim_nonce, t.epoch, t.submitter,
    t.record_digest, t.waiting,
    (SELECT s.result FROM step AS s WHERE s.task_id = t.task_id AND s.name = coalesce(%(done)s, %(begin)s)) AS result,
    (
        SELECT c.request FROM compensation AS c
        WHERE c.task_id = t.task_id AND c.step = %(begin)s AND t.state = 'Compensating'
    ) AS body,
    CASE WHEN %(original)s AND t.state = 'Compensating' THEN known_result(t.task_id, %(begin)s) END AS original,
    extract(epoch FROM t.complete_by - (SELECT clock_timestamp()))::float8 AS time_left_s,
    (
        SELECT coalesce(jsonb_agg(jsonb_build_object(
            'name', s.name, 'state', s.state, 'epoch', s.epoch, 'pivot', s.pivot,
            'calls_left', CASE t.state WHEN 'Compensating' THEN s.undo_budget_left ELSE s.budget_left END,
            'reserved', s.reserved,
            'reservation', s.reservation, 'key_generation', s.key_generation, 'unknown', s.outcome_unknown,
            'key_age_s', coalesce(extract(epoch FROM (SELECT clock_timestamp()) - s.key_since), 0),
            'time_left_s', extract(epoch FROM s.complete_by - (SELECT clock_timestamp())),
            'blocked', is_blocked(
                CASE t.state WHEN 'Compensating' THEN split_part(c.action, '.', 1) ELSE s.service END, s.task_id
            ),
            'quarantined', coalesce(c.quarantined_until > (SELECT clock_timestamp()), false)
        ) ORDER BY s.position), '[]')
        FROM step AS s
        LEFT JOIN compensation AS c
            ON c.task_id = s.task_id AND c.step = s.name AND c.state IN ('Logged', 'Undoing', 'Failed')
        WHERE s.task_id = t.task_id
    ) AS steps,
    (
        SELECT coalesce(jsonb_agg(jsonb_build_object(
            'step', c.step, 'action', c.action, 'generation', c.generation
        ) ORDER BY c.seq DESC), '[]')
        FROM compensation AS c WHERE c.task_id = t.task_id AND c.state IN ('Logged', 'Undoing', 'Failed')
    ) AS undo_log
FROM task AS t
WHERE t.task_id = %(task_id)s AND t.confirmed

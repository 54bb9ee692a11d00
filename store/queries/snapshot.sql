-- The task as this transaction leaves it, with its steps in order and what is left of its undo log, last begun first.
-- What can be large comes for one step only: the result of step `result_of`, the request of the undo of step `body_of`.
-- A submission that is not confirmed is no task yet.
SELECT
    t.task_id, t.definition, t.version, t.state, t.locked_by, t.run_id, t.claim_nonce, t.epoch, t.submitter,
    t.record_digest, t.waiting,
    (SELECT s.result FROM step AS s WHERE s.task_id = t.task_id AND s.name = %(result_of)s) AS result,
    (SELECT c.request FROM compensation AS c WHERE c.task_id = t.task_id AND c.step = %(body_of)s) AS body,
    extract(epoch FROM t.complete_by - (SELECT clock_timestamp()))::float8 AS time_left_s,
    (
        SELECT coalesce(jsonb_agg(jsonb_build_object(
            'name', s.name, 'state', s.state, 'epoch', s.epoch, 'pivot', s.pivot,
            'budget_left', s.budget_left, 'undo_budget_left', s.undo_budget_left, 'reserved', s.reserved,
            'reservation', s.reservation, 'key_generation', s.key_generation, 'unknown', s.outcome_unknown,
            'key_age_s', coalesce(extract(epoch FROM (SELECT clock_timestamp()) - s.key_since), 0),
            'time_left_s', extract(epoch FROM s.complete_by - (SELECT clock_timestamp())),
            'blocked', is_blocked(s.service, s.task_id)
        ) ORDER BY s.position), '[]')
        FROM step AS s WHERE s.task_id = t.task_id
    ) AS steps,
    (
        SELECT coalesce(jsonb_agg(jsonb_build_object(
            'step', c.step, 'action', c.action, 'generation', c.generation,
            'quarantined', coalesce(c.quarantined_until > (SELECT clock_timestamp()), false),
            'blocked', is_blocked(split_part(c.action, '.', 1), c.task_id)
        ) ORDER BY c.seq DESC), '[]')
        FROM compensation AS c WHERE c.task_id = t.task_id AND c.state IN ('Logged', 'Undoing', 'Failed')
    ) AS undo_log
FROM task AS t
WHERE t.task_id = %(task_id)s AND t.confirmed

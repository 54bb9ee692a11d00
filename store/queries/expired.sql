-- One page of held rows whose complete_by has passed, oldest first. Reads only. The window begins at the
-- oldest held row, so that nothing is ever too old to be found. With each: whether supervision or the store was out
-- while it was held, however long ago, and how often it has expired in vain.
SELECT
    t.task_id, t.state, t.locked_by, t.complete_by, t.last_event, past_pivot(t.task_id) AS past_pivot,
    extract(epoch FROM (SELECT clock_timestamp()) - t.complete_by)::float8 AS overdue_s,
    d.policies,
    EXISTS (
        SELECT 1 FROM sweep AS o
        WHERE
            o.outage_until > (
                SELECT c.at FROM event AS c
                WHERE c.task_id = t.task_id AND c.epoch = t.epoch AND c.kind = 'claimed'
                ORDER BY c.number DESC LIMIT 1
            )
    ) AS outage,
    (
        SELECT count(*) FROM event AS e
        WHERE
            e.task_id = t.task_id AND e.kind = 'expired' AND e.at >= t.progress_at
            AND e.state_to = CASE t.state WHEN 'Processing' THEN 'Pending' ELSE e.state_from END
            AND NOT e.detail @> '{"outage": true}'
    ) AS expiries,
    steps.rows AS steps
FROM (
    SELECT task_id, definition, version, state, locked_by, epoch, complete_by, last_event, progress_at FROM task
    WHERE
        locked_by IS NOT NULL
        AND complete_by <= (SELECT clock_timestamp())
        AND complete_by <= (
            SELECT min(complete_by) + make_interval(secs => %(window_s)s) FROM task WHERE locked_by IS NOT NULL
        )
        AND (
            SELECT count(*) = 0 FROM sweep
            WHERE id = %(sweep)s AND started_at < clock_timestamp() - make_interval(secs => %(within_s)s)
        )
        AND (complete_by, task_id) > (%(after_at)s, %(after_id)s)
    ORDER BY complete_by, task_id
    LIMIT %(page)s
) AS t
LEFT JOIN definition AS d ON d.name = t.definition AND d.version = t.version
CROSS JOIN LATERAL (
    SELECT coalesce(jsonb_agg(jsonb_build_object(
        'name', s.name, 'state', s.state, 'failure_count', s.failure_count, 'budget_left', s.budget_left,
        'undo_budget_left', s.undo_budget_left, 'reserved', s.reserved, 'gave_up', s.gave_up, 'current', s.epoch = t.epoch,
        'overdue', s.complete_by <= (SELECT clock_timestamp())
    ) ORDER BY s.position), '[]') AS rows
    FROM step AS s WHERE s.task_id = t.task_id
) AS steps
ORDER BY t.complete_by, t.task_id

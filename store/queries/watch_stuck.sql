-- Alerts on what no deadline tells of: tasks that are due for long and that nobody claims, one alert a definition
-- version and cause within the hour; and undos that don't finish, one alert an undo. It looks at the first rows of each
-- version in the claim's own index, the longest due, and at the longest undos, however many there are.
WITH RECURSIVE version AS (
    (
        SELECT t.definition, t.version, t.state FROM task AS t
        WHERE t.locked_by IS NULL AND t.confirmed AND t.state IN ('Pending', 'Compensating')
        ORDER BY t.definition, t.version, t.state
        LIMIT 1
    )
    UNION ALL
    SELECT next.definition, next.version, next.state
    FROM version AS v
    CROSS JOIN LATERAL (
        SELECT t.definition, t.version, t.state FROM task AS t
        WHERE
            t.locked_by IS NULL AND t.confirmed AND t.state IN ('Pending', 'Compensating')
            AND (t.definition, t.version, t.state) > (v.definition, v.version, v.state)
        ORDER BY t.definition, t.version, t.state
        LIMIT 1
    ) AS next
),
unheld AS MATERIALIZED (
    SELECT t.*
    FROM version AS v
    CROSS JOIN LATERAL (
        SELECT t.task_id, t.definition, t.version, t.state, t.not_before FROM task AS t
        WHERE
            t.definition = v.definition AND t.version = v.version AND t.state = v.state
            AND t.locked_by IS NULL AND t.confirmed AND t.state IN ('Pending', 'Compensating')
        ORDER BY t.not_before, t.task_id
        LIMIT %(most)s
    ) AS t
),
stuck AS (
    SELECT
        u.task_id, u.not_before, u.definition || ' v' || u.version || ': ' || CASE
            WHEN NOT EXISTS (
                SELECT 1 FROM presence AS p
                WHERE
                    p.name = u.definition AND p.version = u.version
                    AND p.seen_at > clock_timestamp() - make_interval(secs => %(worker_gone_s)s)
            ) THEN 'no live worker has it'
            WHEN is_blocked(needs.service, u.task_id) THEN 'the breaker of ' || needs.service || ' is open'
            ELSE 'its workers claim none of them'
        END AS subject
    FROM unheld AS u
    CROSS JOIN LATERAL (SELECT next_service(u.task_id, u.state = 'Compensating') AS service) AS needs
    WHERE u.not_before <= clock_timestamp() - make_interval(secs => %(stuck_after_s)s)
),
stuck_alert AS (
    INSERT INTO alert (kind, message)
    SELECT 'stuck_pending', format(
        '%%s; %%s tasks are due, the oldest, %%s, for %%s s', s.subject, count(*),
        (array_agg(s.task_id ORDER BY s.not_before, s.task_id))[1],
        round(extract(epoch FROM clock_timestamp() - min(s.not_before)))
    )
    FROM stuck AS s
    GROUP BY s.subject
    HAVING NOT alerted_lately('stuck_pending', s.subject || ';')
),
stalled AS (
    SELECT t.task_id, t.state_since FROM task AS t
    WHERE
        t.state = 'Compensating'
        AND t.state_since <= (SELECT clock_timestamp()) - make_interval(secs => %(undo_stalled_after_s)s)
    ORDER BY t.state_since, t.task_id
    LIMIT %(most)s
)
INSERT INTO alert (kind, task_id, message)
SELECT 'undo_stalled', s.task_id, format(
    'its undo was asked for %%s s ago; not undone yet: %%s',
    round(extract(epoch FROM clock_timestamp() - s.state_since)), (
        SELECT string_agg(c.step, ', ' ORDER BY c.seq DESC) FROM compensation AS c
        WHERE c.task_id = s.task_id AND c.state IN ('Logged', 'Undoing', 'Failed')
    )
)
FROM stalled AS s
WHERE NOT EXISTS (
    SELECT 1 FROM alert AS a
    WHERE a.kind = 'undo_stalled' AND a.task_id = s.task_id AND a.raised_at > s.state_since
)

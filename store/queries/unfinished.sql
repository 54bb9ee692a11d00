-- Whether a submission was never finished, as far as the store can know: a claim found no business record of its own
-- within a minute of it, and nothing tells of one since. What a claim misses only later may have been there before, and
-- acknowledged (A6).
SELECT t.task_id
FROM task AS t
WHERE
    t.task_id = %(task_id)s
    AND NOT EXISTS (SELECT 1 FROM step AS s WHERE s.task_id = t.task_id AND s.state <> 'NotStarted')
    AND EXISTS (
        SELECT 1 FROM event AS e
        WHERE
            e.task_id = t.task_id AND e.detail ->> 'record' = 'missing'
            AND e.at < t.created_at + interval '1 minute'
    )
    AND NOT EXISTS (
        SELECT 1 FROM event AS e
        WHERE
            e.task_id = t.task_id
            AND (
                e.detail ->> 'record' = 'there' OR e.detail ? 'kept'
                OR e.kind NOT IN ('submitted', 'claimed', 'released', 'noted')
            )
    )

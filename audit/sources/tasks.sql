-- A page of tasks in the order of their ids, each with everything on record about it. Reads only.
SELECT
    to_jsonb(t) AS row,
    (
        SELECT coalesce(jsonb_agg(to_jsonb(s) ORDER BY s.position), '[]') FROM step AS s WHERE s.task_id = t.task_id
    ) AS steps,
    (
        SELECT coalesce(jsonb_agg(to_jsonb(c) ORDER BY c.seq), '[]')
        FROM compensation AS c WHERE c.task_id = t.task_id
    ) AS undo_log,
    (
        SELECT coalesce(jsonb_agg(to_jsonb(e) ORDER BY e.number), '[]') FROM event AS e WHERE e.task_id = t.task_id
    ) AS events,
    (SELECT coalesce(jsonb_agg(to_jsonb(a) ORDER BY a.id), '[]') FROM alert AS a WHERE a.task_id = t.task_id) AS alerts,
    (
        SELECT coalesce(jsonb_agg(
            jsonb_build_object('key', i.key, 'received_at', i.received_at) || (i.body -> 'outcome')
            ORDER BY i.received_at, i.response_id
        ), '[]')
        FROM step AS s
        INNER JOIN inbox AS i ON i.key = s.task_id || ':' || s.name || ':' || s.key_generation
        WHERE s.task_id = t.task_id
    ) AS later_answers,
    (
        SELECT jsonb_build_object('policies', d.policies, 'has_live_worker', EXISTS (
            SELECT FROM presence AS p
            WHERE p.name = d.name AND p.version = d.version
                AND p.seen_at > (SELECT clock_timestamp()) - %(alive_within)s
        ))
        FROM definition AS d WHERE d.name = t.definition AND d.version = t.version
    ) AS definition
FROM task AS t
WHERE t.task_id > %(after)s AND (%(ids)s::text[] IS NULL OR t.task_id = ANY(%(ids)s))
ORDER BY t.task_id
LIMIT %(size)s

-- What a step returned, as far as anybody was told: on record, by an answer that came later and that no attempt took, or by
-- one that came too late to count. Null where its outcome is unknown, and for a step that returns nothing.
CREATE FUNCTION known_result(task text, step_name text) RETURNS jsonb LANGUAGE sql STABLE AS $$
    SELECT nullif(coalesce(
        s.result,
        (
            SELECT i.body #> '{outcome,result}' FROM inbox AS i
            WHERE i.key = task || ':' || step_name || ':' || s.key_generation AND i.body #>> '{outcome,kind}' = 'completed'
            ORDER BY i.received_at, i.response_id
            LIMIT 1
        ),
        (
            SELECT e.detail #> '{answer,result}' FROM event AS e
            WHERE
                e.task_id = task AND e.kind = 'late_answer' AND e.detail ->> 'step' = step_name
                AND e.detail #>> '{answer,kind}' = 'completed' AND e.detail #> '{answer,result}' <> '{}'
            ORDER BY e.number
            LIMIT 1
        )
    ), '{}')
    FROM step AS s
    WHERE s.task_id = task AND s.name = step_name
$$;

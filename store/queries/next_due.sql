-- Seconds until the next task is due of those that the caller could claim then; null if none waits. What is due already
-- is left out: it is claimed, or something else holds it back.
SELECT extract(epoch FROM min(c.not_before) - clock_timestamp())::float8 AS due_in_s
FROM unnest(%(definitions)s::text[], %(versions)s::int[]) AS loaded (definition, version)
CROSS JOIN unnest(%(states)s::text[]) AS wanted (state)
CROSS JOIN LATERAL (
    SELECT t.not_before
    FROM task AS t
    WHERE
        t.definition = loaded.definition AND t.version = loaded.version AND t.state = wanted.state
        AND t.locked_by IS NULL AND t.confirmed AND t.state IN ('Pending', 'Compensating')
        AND t.not_before > (SELECT clock_timestamp())
    ORDER BY t.not_before
    LIMIT 1
) AS c

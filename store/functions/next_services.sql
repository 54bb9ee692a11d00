-- The remote services that the next attempt at a task needs at once, each with the place of its step: one for an undo,
-- those of all steps that may start side by side otherwise.
CREATE FUNCTION next_services(task text, undo boolean) RETURNS TABLE (service text, place int) LANGUAGE sql STABLE AS $$
    (
        SELECT split_part(c.action, '.', 1), 0 FROM compensation AS c
        WHERE undo AND c.task_id = task AND c.state IN ('Logged', 'Undoing', 'Failed')
        ORDER BY c.seq DESC LIMIT 1
    )
    UNION ALL
    SELECT s.service, s.position
    FROM step AS s
    INNER JOIN task AS t ON t.task_id = s.task_id
    LEFT JOIN definition AS d ON d.name = t.definition AND d.version = t.version
    WHERE
        NOT undo AND s.task_id = task AND s.state <> 'Completed'
        AND NOT EXISTS (
            SELECT 1 FROM step AS p
            WHERE
                p.task_id = s.task_id AND p.state <> 'Completed'
                AND (d.policies #> ARRAY['steps', s.name, 'after']) ? p.name
        )
$$;

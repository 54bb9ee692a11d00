-- Whether a task can only go forward: a pivot has begun and may have had its effect. `ignoring` leaves one step out.
CREATE FUNCTION past_pivot(task text, ignoring text DEFAULT NULL) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (
        SELECT 1 FROM step AS p
        WHERE
            p.task_id = task AND p.pivot AND p.name IS DISTINCT FROM ignoring
            AND (p.state IN ('Running', 'Completed') OR (p.state = 'Failed' AND p.outcome_unknown))
    )
$$;

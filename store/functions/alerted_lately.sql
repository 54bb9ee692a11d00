-- Whether an alert of this kind, whose message begins so, was raised within the hour; with a task, on that one.
CREATE FUNCTION alerted_lately(what text, beginning text DEFAULT '', task text DEFAULT NULL) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT EXISTS (
        SELECT 1 FROM alert AS a
        WHERE
            a.kind = what AND a.raised_at > clock_timestamp() - interval '1 hour'
            AND starts_with(a.message, beginning) AND (task IS NULL OR a.task_id = task)
    )
$$;

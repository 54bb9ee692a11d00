-- The one of them that it needs first; null if it needs none. Rather one whose breaker is open: an attempt could not go
-- on without it, so the task waits for that.
CREATE FUNCTION next_service(task text, undo boolean) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT n.service FROM next_services(task, undo) AS n ORDER BY is_blocked(n.service, task) DESC, n.place LIMIT 1
$$;

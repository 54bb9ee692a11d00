-- The earliest moment at which undo may begin: where a begun step's service keeps no tombstones, nothing but time keeps
-- a late original out, so undo waits out every deadline that was ever granted to such a step, plus a margin.
CREATE FUNCTION undo_from(task text) RETURNS timestamptz LANGUAGE sql VOLATILE AS $$
    SELECT greatest(clock_timestamp(), (
        SELECT max(s.complete_by) + late_call_margin()
        FROM step AS s
        WHERE s.task_id = task AND s.quarantine_s IS NOT NULL AND s.state NOT IN ('NotStarted', 'Undone')
    ))
$$;

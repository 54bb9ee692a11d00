-- The task, while this attempt holds it: by the run that has bound itself, or the first one that knows the claim's nonce.
CREATE FUNCTION held_task(task text, attempt text, run text, nonce text)
RETURNS TABLE (task_id text, state text, epoch int, last_seq int, complete_by timestamptz) LANGUAGE sql STABLE AS $$
    SELECT t.task_id, t.state, t.epoch, t.last_seq, t.complete_by FROM task AS t
    WHERE t.task_id = task AND t.locked_by = attempt AND (t.run_id = run OR (t.run_id IS NULL AND t.claim_nonce = nonce))
$$;

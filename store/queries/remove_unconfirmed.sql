-- Removes the row of a submission that was never finished, with its steps and its event, and alerts: only the very row
-- that was seen, and only while it is not confirmed, so that nothing can have been acknowledged on it. Runs under
-- the task's lock.
WITH removed AS (
    DELETE FROM task AS t
    WHERE t.task_id = %(task_id)s AND t.created_at = %(created_at)s AND NOT t.confirmed
    RETURNING t.task_id
),
steps AS (DELETE FROM step AS s USING removed WHERE s.task_id = removed.task_id),
events AS (DELETE FROM event AS e USING removed WHERE e.task_id = removed.task_id)
INSERT INTO alert (kind, task_id, message)
SELECT 'submission_abandoned', task_id, %(message)s FROM removed

-- Removes the row of a submission that never finished, with its steps and events: only the very row that was seen, and
-- only if nothing has happened to it since, so that no submission can have been acknowledged on it meanwhile (A6).
-- Runs under the task's lock.
WITH removed AS (
    DELETE FROM task AS t
    WHERE
        t.task_id = %(task_id)s AND t.state = 'Pending' AND t.last_event = %(last_event)s
        AND t.created_at = %(created_at)s
        AND NOT EXISTS (SELECT 1 FROM step AS s WHERE s.task_id = t.task_id AND s.state <> 'NotStarted')
    RETURNING t.task_id
),
steps AS (DELETE FROM step AS s USING removed WHERE s.task_id = removed.task_id),
events AS (DELETE FROM event AS e USING removed WHERE e.task_id = removed.task_id)
INSERT INTO alert (kind, task_id, message)
SELECT 'submission_abandoned', task_id, %(message)s FROM removed

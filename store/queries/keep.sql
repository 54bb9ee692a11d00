-- Whether a task whose business record is there is on record. While nothing has been begun an event is added, so that
-- nobody who saw the record missing removes the row any more, and who waits for it need wait no longer (A6). Runs under
-- the task's lock.
WITH kept AS (
    UPDATE task AS t SET
        not_before = CASE
            WHEN t.locked_by IS NULL AND EXISTS (
                SELECT 1 FROM event AS e
                WHERE e.task_id = t.task_id AND e.number = t.last_event AND e.detail ->> 'record' = 'missing'
            ) THEN least(t.not_before, clock_timestamp())
            ELSE t.not_before
        END,
        last_event = t.last_event + 1, updated_at = clock_timestamp()
    WHERE
        t.task_id = %(task_id)s AND t.epoch > 0 AND t.state IN ('Pending', 'Processing')
        AND NOT EXISTS (SELECT 1 FROM step AS s WHERE s.task_id = t.task_id AND s.state <> 'NotStarted')
    RETURNING t.task_id, t.last_event, t.state, t.epoch
),
logged AS (
    INSERT INTO event (task_id, number, kind, state_from, state_to, epoch, actor, detail)
    SELECT task_id, last_event, 'noted', state, state, epoch, 'submission', '{"kept": true}' FROM kept
)
SELECT task_id FROM task WHERE task_id = %(task_id)s

-- Makes a submission claimable whose business record is there: nobody can claim it before, and nobody removes it
-- afterwards. Returns a row if it is confirmed, by this or by an earlier write. Runs under the task's lock.
WITH confirmed AS (
    UPDATE task AS t SET
        confirmed = true, not_before = clock_timestamp(), last_event = t.last_event + 1
    WHERE t.task_id = %(task_id)s AND t.record_digest = %(digest)s AND NOT t.confirmed
    RETURNING t.task_id, t.last_event, t.state, t.epoch
),
logged AS (
    INSERT INTO event (task_id, number, kind, state_from, state_to, epoch, actor, detail)
    SELECT task_id, last_event, 'confirmed', state, state, epoch, %(actor)s, '{}' FROM confirmed
)
SELECT task_id FROM task WHERE task_id = %(task_id)s AND record_digest = %(digest)s

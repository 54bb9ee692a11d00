-- Appends an event that changes nothing else: something that happened to a task and should not be forgotten.
WITH noted AS (
    UPDATE task AS t SET last_event = t.last_event + 1, updated_at = clock_timestamp()
    WHERE t.task_id = %(task_id)s
    RETURNING t.task_id, t.last_event, t.state, t.epoch
)
INSERT INTO event (task_id, number, kind, state_from, state_to, epoch, actor, detail)
SELECT task_id, last_event, 'noted', state, state, epoch, %(actor)s, %(detail)s::jsonb
FROM noted

-- The lock owner, which can't go on for reasons that are not the task's, gives the row back: no failure is counted, and of
-- the reservation returns what was certainly not sent; if that is not known, nothing. A step that was never sent has no
-- key that could be forgotten. What a deployment lacks is an alert, each part once an hour.
WITH held AS MATERIALIZED (
    SELECT task_id, state, epoch FROM held_task(%(task_id)s, %(locked_by)s, %(run_id)s, %(nonce)s)
    WHERE state IN ('Processing', 'Compensating')
),
returned AS (
    UPDATE step AS s SET
        budget_left = s.budget_left
        + CASE WHEN s.state = 'Running' THEN greatest(0, s.reserved - %(sent)s::int) ELSE 0 END,
        undo_budget_left = s.undo_budget_left
        + CASE WHEN s.state = 'Undoing' THEN greatest(0, s.reserved - %(sent)s::int) ELSE 0 END,
        reserved = least(s.reserved, %(sent)s::int), reservation = NULL,
        key_since = CASE
            WHEN s.state = 'Undoing' OR s.outcome_unknown OR %(sent)s::int IS DISTINCT FROM 0 THEN s.key_since
        END
    FROM held
    WHERE
        s.task_id = held.task_id AND s.name = %(step)s AND s.epoch = held.epoch AND s.state IN ('Running', 'Undoing')
),
-- Of what runs beside it, it is not known what was sent: it is granted as many calls as it had reserved.
granted AS (
    UPDATE step AS s SET
        budget = s.budget + s.reserved, budget_left = s.budget_left + s.reserved
    FROM held
    WHERE
        s.task_id = held.task_id AND s.name IS DISTINCT FROM %(step)s AND s.epoch = held.epoch
        AND s.state = 'Running' AND s.reserved > 0
    RETURNING s.name, s.reserved
),
moved AS (
    UPDATE task AS t SET
        state = CASE t.state WHEN 'Processing' THEN 'Pending' ELSE t.state END,
        locked_by = NULL, run_id = NULL, complete_by = NULL,
        not_before = clock_timestamp() + make_interval(secs => %(delay_s)s),
        last_event = t.last_event + 1
    FROM held
    WHERE t.task_id = held.task_id
    RETURNING t.task_id, t.last_event, t.state, t.epoch
),
alerted AS (
    INSERT INTO alert (kind, task_id, message)
    SELECT 'lacking', moved.task_id, %(cause)s::text
    FROM moved
    WHERE %(lacking)s::text <> '' AND NOT alerted_lately('lacking', %(lacking)s::text || ':')
)
INSERT INTO event (task_id, number, kind, state_from, state_to, epoch, actor, detail)
SELECT
    moved.task_id, moved.last_event, 'released', held.state, moved.state, moved.epoch, %(locked_by)s,
    jsonb_strip_nulls(jsonb_build_object(
        'cause', %(cause)s::text, 'sent', %(sent)s::int, 'granted', (SELECT jsonb_object_agg(name, reserved) FROM granted),
        'run_id', %(run_id)s::text
    ))
FROM moved, held

-- Keeps an answer that came too late as evidence, once for each attempt and step: an event, and nothing else changes.
WITH noted AS (
    UPDATE task AS t SET last_event = t.last_event + 1
    WHERE
        t.task_id = %(task_id)s AND t.confirmed
        AND NOT EXISTS (
            SELECT 1 FROM event AS e
            WHERE
                e.task_id = t.task_id AND e.kind = 'late_answer' AND e.actor = %(actor)s
                AND e.detail ->> 'step' = %(step)s
        )
    RETURNING t.task_id, t.last_event, t.state, t.epoch
)
INSERT INTO event (task_id, number, kind, state_from, state_to, epoch, actor, detail)
SELECT
    task_id, last_event, 'late_answer', state, state, epoch, %(actor)s,
    jsonb_build_object('step', %(step)s::text, 'answer', %(answer)s::jsonb)
FROM noted

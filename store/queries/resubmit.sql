-- Error back to Pending on a person's word: counts reset, fresh budget granted, and a new key generation only where
-- it is proved that no effect exists (refused for good, and no call of unknown outcome before) (G1).
WITH movable AS MATERIALIZED (
    SELECT t.task_id, t.state, t.epoch, t.last_event, t.definition, t.version
    FROM task AS t WHERE t.task_id = %(task_id)s AND t.state = 'Error'
),
granted AS (
    UPDATE step AS s SET
        failure_count = 0, gave_up = false,
        budget = s.budget - s.budget_left + (d.policies #>> ARRAY['steps', s.name, 'budget'])::int,
        budget_left = (d.policies #>> ARRAY['steps', s.name, 'budget'])::int,
        key_generation = s.key_generation + CASE WHEN s.state = 'Failed' AND NOT s.outcome_unknown THEN 1 ELSE 0 END
    FROM movable AS m INNER JOIN definition AS d ON d.name = m.definition AND d.version = m.version
    WHERE s.task_id = m.task_id AND s.state <> 'Completed'
),
moved AS (
    UPDATE task AS t SET
        state = 'Pending', state_since = clock_timestamp(), not_before = clock_timestamp(), failure_count = 0,
        error = NULL, last_event = t.last_event + 1, updated_at = clock_timestamp()
    FROM movable
    WHERE t.task_id = movable.task_id
    RETURNING t.task_id, t.last_event, t.state, t.epoch
)
INSERT INTO event (task_id, number, kind, state_from, state_to, epoch, actor, detail)
SELECT
    moved.task_id, moved.last_event, 'resubmitted', movable.state, moved.state, moved.epoch, %(requester)s,
    jsonb_build_object('reason', %(reason)s::text, 'changes', %(changes)s::jsonb, 'request', %(request)s::text)
FROM moved, movable

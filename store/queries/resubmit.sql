-- Error back to Pending on a person's word: counts reset, fresh budget granted, and a new key generation only where
-- it is proved that no effect exists (refused for good, and no call of unknown outcome before), or a person says
-- on evidence that the calls of unknown outcome of step `no_effect` had none, and none is on its way.
WITH movable AS MATERIALIZED (
    SELECT t.task_id, t.state, t.epoch, t.definition, t.version, w.key_generation, w.key_since
    FROM task AS t
    LEFT JOIN step AS w ON
        w.task_id = t.task_id AND w.name = %(no_effect)s
        AND ((w.state IN ('Running', 'Failed') AND w.outcome_unknown) OR (w.state = 'Running' AND w.reserved > 0))
        AND w.complete_by + late_call_margin() <= clock_timestamp()
    WHERE
        t.task_id = %(task_id)s AND t.state = 'Error'
        AND (%(no_effect)s::text IS NULL OR w.name IS NOT NULL)
),
granted AS (
    UPDATE step AS s SET
        failure_count = 0, gave_up = false,
        budget = s.budget - s.budget_left + (d.policies #>> ARRAY['steps', s.name, 'budget'])::int,
        budget_left = (d.policies #>> ARRAY['steps', s.name, 'budget'])::int,
        key_generation = s.key_generation + CASE
            WHEN s.name = %(no_effect)s OR (s.state = 'Failed' AND NOT s.outcome_unknown) THEN 1 ELSE 0
        END,
        key_since = CASE WHEN s.name = %(no_effect)s THEN NULL ELSE s.key_since END,
        outcome_unknown = s.outcome_unknown AND s.name IS DISTINCT FROM %(no_effect)s,
        reserved = CASE WHEN s.name = %(no_effect)s THEN 0 ELSE s.reserved END,
        reservation = CASE WHEN s.name = %(no_effect)s THEN NULL ELSE s.reservation END
    FROM movable AS m INNER JOIN definition AS d ON d.name = m.definition AND d.version = m.version
    WHERE s.task_id = m.task_id AND s.state <> 'Completed'
),
moved AS (
    UPDATE task AS t SET
        state = 'Pending', not_before = clock_timestamp(),
        progress_at = clock_timestamp(), failure_count = 0, error = NULL,
        last_event = t.last_event + 1
    FROM movable
    WHERE t.task_id = movable.task_id
    RETURNING t.task_id, t.last_event, t.state, t.epoch
)
INSERT INTO event (task_id, number, kind, state_from, state_to, epoch, actor, detail)
SELECT
    moved.task_id, moved.last_event, 'resubmitted', movable.state, moved.state, moved.epoch, %(requester)s,
    jsonb_build_object('reason', %(reason)s::text, 'changes', %(changes)s::jsonb, 'request', %(request)s::text)
    || CASE WHEN %(no_effect)s::text IS NULL THEN '{}' ELSE jsonb_build_object('no_effect', jsonb_build_object(
        'step', %(no_effect)s::text, 'evidence', %(evidence)s::text,
        'from', jsonb_build_object(
            'outcome_unknown', true, 'key_generation', movable.key_generation, 'key_since', movable.key_since
        ),
        'to', jsonb_build_object(
            'outcome_unknown', false, 'key_generation', movable.key_generation + 1, 'key_since', NULL
        )
    )) END
FROM moved, movable

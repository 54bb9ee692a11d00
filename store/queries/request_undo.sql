-- Asks for the undo of a task, whoever holds it: Compensating, held by nobody, requester and reason in the event.
-- Refused past the pivot; nothing changes if it is being undone already. From CompensationFailed the undo budget is
-- granted anew, entries that were skipped are open again, each that is left gets a new key, as a service may repeat its
-- refusal of the old one, and no quarantine is cut short. With `holder`, only if that attempt still holds the task.
WITH movable AS MATERIALIZED (
    SELECT t.task_id, t.state, t.epoch, t.definition, t.version
    FROM task AS t
    WHERE
        t.task_id = %(task_id)s AND t.confirmed
        AND t.state IN ('Pending', 'Processing', 'Processed', 'Error', 'CompensationFailed')
        AND (%(holder)s::text IS NULL OR t.locked_by = %(holder)s)
        AND (%(definition)s::text IS NULL OR t.definition = %(definition)s)
        AND NOT past_pivot(t.task_id)
),
granted AS (
    UPDATE step AS s SET
        failure_count = 0, gave_up = false,
        undo_budget = s.undo_budget - s.undo_budget_left + (d.policies #>> ARRAY['steps', s.name, 'undo_budget'])::int,
        undo_budget_left = (d.policies #>> ARRAY['steps', s.name, 'undo_budget'])::int
    FROM movable AS m INNER JOIN definition AS d ON d.name = m.definition AND d.version = m.version
    WHERE s.task_id = m.task_id AND m.state = 'CompensationFailed' AND s.state <> 'Undone'
),
reopened AS (
    UPDATE compensation AS c SET
        state = CASE c.state WHEN 'Skipped' THEN 'Logged' ELSE c.state END, note = NULL, generation = c.generation + 1
    FROM movable AS m
    WHERE c.task_id = m.task_id AND m.state = 'CompensationFailed' AND c.state NOT IN ('Undone', 'ClosedByHand')
),
moved AS (
    UPDATE task AS t SET
        state = 'Compensating', locked_by = NULL, run_id = NULL, complete_by = NULL,
        not_before = greatest(undo_from(t.task_id), (
            SELECT max(c.quarantined_until) FROM compensation AS c
            WHERE c.task_id = t.task_id AND c.state IN ('Logged', 'Undoing', 'Failed', 'Skipped')
        )),
        progress_at = clock_timestamp(), failure_count = 0, last_event = t.last_event + 1,
        error = CASE movable.state WHEN 'CompensationFailed' THEN NULL ELSE t.error END
    FROM movable
    WHERE t.task_id = movable.task_id
    RETURNING t.task_id, t.last_event, t.state, t.epoch
)
INSERT INTO event (task_id, number, kind, state_from, state_to, epoch, actor, detail)
SELECT
    moved.task_id, moved.last_event, 'undo_requested', movable.state, moved.state, moved.epoch, %(requester)s,
    jsonb_strip_nulls(jsonb_build_object(
        'reason', %(reason)s::text, 'request', %(request)s::text, 'sender', nullif(%(sender)s::text, '')
    ))
FROM moved, movable

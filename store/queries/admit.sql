-- Inserts a task with its steps, all NotStarted, and its first event, only where its definition's caps leave room. It
-- is not confirmed yet: nobody can claim it before `confirm.sql`.
-- Runs under the admission lock, so that no other insert can come between the count and this one.
WITH load AS MATERIALIZED (
    SELECT
        (SELECT count(*) FROM (
            SELECT 1 FROM task
            WHERE definition = %(definition)s AND state IN ('Pending', 'Processing')
            LIMIT %(max_in_flight)s
        ) AS f) AS in_flight,
        (SELECT count(*) FROM (
            SELECT 1 FROM task WHERE definition = %(definition)s AND state = 'Pending' LIMIT %(max_pending)s
        ) AS p) AS pending,
        greatest(0, coalesce(extract(epoch FROM clock_timestamp() - (
            SELECT min(not_before) FROM task WHERE definition = %(definition)s AND state = 'Pending'
        )), 0))::float8 AS oldest_pending_s
),
added AS (
    INSERT INTO task (task_id, definition, version, state, record_digest, reply_to, submitter, data_class, last_event)
    SELECT
        %(task_id)s, %(definition)s, %(version)s, 'Pending', %(record_digest)s, %(reply_to)s, %(submitter)s,
        %(data_class)s, 1
    FROM load
    WHERE
        load.in_flight < %(max_in_flight)s AND load.pending < %(max_pending)s
        AND load.oldest_pending_s <= %(max_pending_age_s)s
    ON CONFLICT (task_id) DO NOTHING
    RETURNING task_id
),
steps AS (
    INSERT INTO step (
        task_id, name, position, pivot, service, answers_later, quarantine_s, budget, budget_left, undo_budget,
        undo_budget_left
    )
    SELECT
        added.task_id, s.name, s.position, s.pivot, s.service, s.answers_later, s.quarantine_s, s.budget, s.budget,
        s.undo_budget, s.undo_budget
    FROM added, jsonb_to_recordset(%(steps)s) AS s (
        name text, position int, pivot boolean, service text, answers_later boolean, quarantine_s float8, budget int,
        undo_budget int
    )
),
logged AS (
    INSERT INTO event (task_id, number, kind, state_to, epoch, actor, detail)
    SELECT
        task_id, 1, 'submitted', 'Pending', 0, 'submitter:' || %(submitter)s,
        jsonb_build_object('digest', %(record_digest)s::text)
    FROM added
)
SELECT load.in_flight, load.pending, load.oldest_pending_s, EXISTS (SELECT 1 FROM added) AS added
FROM load

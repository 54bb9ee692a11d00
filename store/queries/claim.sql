-- Claims what can be claimed, soonest first, of the definitions that the caller has loaded and in the wanted states, up
-- to its free slots: a row is claimed by one caller only, the epoch rises by one, and the claim itself has a deadline.
-- Only the run that knows the claim's nonce can bind itself to it. Tasks whose next step needs a service whose breaker
-- is open are passed over, as is one whose events are ahead of it: it could not be written, nor anything with it. With
-- `task_ids`, none but those.
WITH free AS MATERIALIZED (
    SELECT greatest(0, %(slots)s - count(*))::int AS slots
    FROM task WHERE worker = %(worker)s AND locked_by IS NOT NULL AND NOT waiting
),
candidate AS MATERIALIZED (
    SELECT c.task_id, c.state
    FROM unnest(%(definitions)s::text[], %(versions)s::int[]) AS loaded (definition, version)
    CROSS JOIN unnest(%(states)s::text[]) AS wanted (state)
    CROSS JOIN LATERAL (
        SELECT t.task_id, t.state, t.not_before
        FROM task AS t
        WHERE
            t.definition = loaded.definition AND t.version = loaded.version AND t.state = wanted.state
            AND t.locked_by IS NULL AND t.confirmed AND t.state IN ('Pending', 'Compensating')
            AND t.not_before <= (SELECT clock_timestamp())
            AND NOT EXISTS (SELECT 1 FROM event AS e WHERE e.task_id = t.task_id AND e.number > t.last_event)
            AND (
                NOT EXISTS (SELECT 1 FROM service AS v WHERE 'open' IN (v.state, v.forced))
                OR NOT is_blocked(next_service(t.task_id, t.state = 'Compensating'), t.task_id)
            )
            AND (%(task_ids)s::text[] IS NULL OR t.task_id = ANY(%(task_ids)s::text[]))
        ORDER BY t.not_before, t.task_id
        LIMIT (SELECT slots FROM free)
        FOR UPDATE SKIP LOCKED
    ) AS c
    ORDER BY c.not_before
    LIMIT (SELECT slots FROM free)
),
claimed AS (
    UPDATE task AS t SET
        state = CASE t.state WHEN 'Pending' THEN 'Processing' ELSE t.state END,
        epoch = t.epoch + 1,
        locked_by = t.definition || '/' || t.task_id || '/' || (t.epoch + 1),
        run_id = NULL,
        claim_nonce = gen_random_uuid()::text,
        worker = %(worker)s,
        waiting = false,
        progress_at = CASE t.epoch WHEN 0 THEN clock_timestamp() ELSE t.progress_at END,
        complete_by = clock_timestamp() + make_interval(secs => %(claim_within_s)s),
        last_event = t.last_event + 1
    FROM candidate
    WHERE t.task_id = candidate.task_id AND t.locked_by IS NULL AND t.state IN ('Pending', 'Compensating')
    RETURNING t.task_id, t.state, t.epoch, t.last_event, t.locked_by, candidate.state AS state_from
),
logged AS (
    INSERT INTO event (task_id, number, kind, state_from, state_to, epoch, actor, detail)
    SELECT task_id, last_event, 'claimed', state_from, state, epoch, %(worker)s, jsonb_build_object('by', locked_by)
    FROM claimed
)
SELECT task_id, epoch FROM claimed

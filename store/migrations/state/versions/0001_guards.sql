-- The state machine, and who may move what, refused where it is broken: also from psql, also by a bug.
-- The moves are those of domain/states.py; a test tries every one against these triggers, by every role. Names in a guard
-- mean what they mean here, whatever the session's search_path is.

-- Who acts, by the database's own word: the owner of the tables; the application; or the Supervisor, and whoever else was
-- given some right.
CREATE FUNCTION acting_role() RETURNS text LANGUAGE plpgsql STABLE SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    RETURN CASE
        WHEN pg_has_role(current_user, (SELECT relowner FROM pg_class WHERE oid = 'public.task'::regclass), 'USAGE')
            THEN 'owner'
        WHEN pg_has_role(current_user, 'scheduler_app', 'USAGE') THEN 'application'
        ELSE 'supervisor'
    END;
END
$$;

CREATE FUNCTION guard_task() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    IF TG_OP = 'INSERT' THEN
        IF NEW.state <> 'Pending' OR NEW.confirmed OR NEW.epoch <> 0 OR NEW.failure_count <> 0 OR NEW.last_event <> 1
        THEN
            RAISE EXCEPTION 'task %: a new task is Pending, not confirmed, with epoch 0 and no failures', NEW.task_id
                USING ERRCODE = 'check_violation', CONSTRAINT = 'task_starts_pending';
        END IF;
        RETURN NEW;
    END IF;
    IF TG_OP = 'DELETE' THEN
        IF OLD.confirmed THEN
            RAISE EXCEPTION 'task %: its submission was finished: it is not removed', OLD.task_id
                USING ERRCODE = 'check_violation', CONSTRAINT = 'only_unconfirmed_is_removed';
        END IF;
        RETURN OLD;
    END IF;
    IF NEW.task_id <> OLD.task_id OR NEW.definition <> OLD.definition OR NEW.version <> OLD.version
        OR NEW.record_digest <> OLD.record_digest OR NEW.created_at <> OLD.created_at
        OR (OLD.confirmed AND NOT NEW.confirmed)
    THEN
        RAISE EXCEPTION 'task %: its identity does not change', OLD.task_id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'task_identity_is_fixed';
    END IF;
    IF NEW.epoch NOT IN (OLD.epoch, OLD.epoch + 1)
        OR (NEW.epoch = OLD.epoch + 1) <> (NEW.locked_by IS NOT NULL AND OLD.locked_by IS NULL)
        OR (OLD.locked_by IS NOT NULL AND NEW.locked_by IS NOT NULL AND NEW.locked_by <> OLD.locked_by)
    THEN
        RAISE EXCEPTION 'task %: every claim raises the epoch by one, and nothing else does', OLD.task_id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'claim_raises_epoch';
    END IF;
    IF NEW.last_event <> OLD.last_event + 1 THEN
        RAISE EXCEPTION 'task %: every transition is one event, numbered without a gap', OLD.task_id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'transition_has_one_event';
    END IF;
    -- The Supervisor only lets go of what has expired, and counts that once; never against a pivot.
    IF acting_role() = 'supervisor' AND NOT (
            OLD.locked_by IS NOT NULL AND OLD.complete_by <= clock_timestamp()
            AND NEW.locked_by IS NULL AND NEW.run_id IS NULL AND NEW.complete_by IS NULL
            AND NEW.failure_count IN (OLD.failure_count, OLD.failure_count + 1)
            AND NOT (OLD.state = 'Processing' AND NEW.state = 'Compensating' AND past_pivot(OLD.task_id))
        )
    THEN
        RAISE EXCEPTION 'task %: the Supervisor only recovers what has expired', OLD.task_id
            USING ERRCODE = 'insufficient_privilege', CONSTRAINT = 'supervisor_recovers_what_expired';
    END IF;
    NEW.updated_at := clock_timestamp();
    IF NEW.state <> OLD.state THEN
        NEW.state_since := NEW.updated_at;
    END IF;
    RETURN NEW;
END
$$;

CREATE TRIGGER guard_task BEFORE INSERT OR UPDATE OR DELETE ON task FOR EACH ROW EXECUTE FUNCTION guard_task();

-- Dispatchers sleep until the next task is due: whoever leaves one that can be claimed, now or later, wakes them.
CREATE FUNCTION wake_dispatchers() RETURNS trigger LANGUAGE plpgsql
SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    PERFORM pg_notify('task_claimable', NEW.state);
    RETURN NULL;
END
$$;

CREATE TRIGGER wake_dispatchers AFTER UPDATE ON task FOR EACH ROW
    WHEN (NEW.locked_by IS NULL AND NEW.confirmed AND NEW.state IN ('Pending', 'Compensating'))
    EXECUTE FUNCTION wake_dispatchers();

CREATE FUNCTION guard_step() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    IF NEW.state <> OLD.state AND (OLD.state, NEW.state) NOT IN (
            ('NotStarted', 'Running'),
            ('Running', 'Completed'),
            ('Running', 'Failed'),
            ('Running', 'Undoing'),
            ('Completed', 'Undoing'),
            ('Failed', 'Running'),
            ('Failed', 'Undoing'),
            ('Undoing', 'Undone'),
            ('Undoing', 'UndoFailed'),
            ('UndoFailed', 'Undoing'),
            -- a person closed the entry by hand
            ('Running', 'Undone'),
            ('Completed', 'Undone'),
            ('Failed', 'Undone'),
            ('UndoFailed', 'Undone')
    ) THEN
        RAISE EXCEPTION 'task %, step %: % -> % is not a legal transition',
            OLD.task_id, OLD.name, OLD.state, NEW.state
            USING ERRCODE = 'check_violation', CONSTRAINT = 'step_transition_is_legal';
    END IF;
    IF acting_role() = 'supervisor' AND NOT (
            NEW.state = OLD.state AND NEW.state IN ('Running', 'Undoing', 'UndoFailed')
            AND NEW.failure_count IN (OLD.failure_count, OLD.failure_count + 1)
            AND NEW.budget >= OLD.budget AND NEW.undo_budget >= OLD.undo_budget
            AND NEW.budget - NEW.budget_left = OLD.budget - OLD.budget_left
            AND NEW.undo_budget - NEW.undo_budget_left = OLD.undo_budget - OLD.undo_budget_left
            AND NEW.budget - OLD.budget + NEW.undo_budget - OLD.undo_budget IN (0, OLD.reserved)
        )
    THEN
        RAISE EXCEPTION 'task %, step %: the Supervisor only counts a failure, or grants what was reserved',
            OLD.task_id, OLD.name
            USING ERRCODE = 'insufficient_privilege', CONSTRAINT = 'supervisor_counts_what_expired';
    END IF;
    RETURN NEW;
END
$$;

CREATE TRIGGER guard_step BEFORE UPDATE ON step FOR EACH ROW EXECUTE FUNCTION guard_step();

-- What the Supervisor says of a step belongs to an expiry of its task, in the same transaction.
CREATE FUNCTION check_step() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    IF NOT EXISTS (
            SELECT 1 FROM task AS t INNER JOIN event AS e ON e.task_id = t.task_id AND e.number = t.last_event
            WHERE t.task_id = NEW.task_id AND e.kind = 'expired' AND e.xmin = pg_current_xact_id()::xid
        )
    THEN
        RAISE EXCEPTION 'task %, step %: the task has not expired', NEW.task_id, NEW.name
            USING ERRCODE = 'insufficient_privilege', CONSTRAINT = 'supervisor_counts_what_expired';
    END IF;
    RETURN NULL;
END
$$;

CREATE CONSTRAINT TRIGGER check_step AFTER UPDATE ON step
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW WHEN (acting_role() = 'supervisor') EXECUTE FUNCTION check_step();

-- The task, while this attempt holds it: by the run that has bound itself, or the first one that knows the claim's nonce.
CREATE FUNCTION held_task(task text, attempt text, run text, nonce text)
RETURNS TABLE (task_id text, state text, epoch int, last_seq int, complete_by timestamptz) LANGUAGE sql STABLE AS $$
    SELECT t.task_id, t.state, t.epoch, t.last_seq, t.complete_by FROM task AS t
    WHERE t.task_id = task AND t.locked_by = attempt AND (t.run_id = run OR (t.run_id IS NULL AND t.claim_nonce = nonce))
$$;

-- Whether a task can only go forward: a pivot has begun and may have had its effect. `ignoring` leaves one step out.
CREATE FUNCTION past_pivot(task text, ignoring text DEFAULT NULL) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (
        SELECT 1 FROM step AS p
        WHERE
            p.task_id = task AND p.pivot AND p.name IS DISTINCT FROM ignoring
            AND (p.state IN ('Running', 'Completed') OR (p.state = 'Failed' AND p.outcome_unknown))
    )
$$;

-- Whether an alert of this kind, whose message begins so, was raised within the hour; with a task, on that one.
CREATE FUNCTION alerted_lately(what text, beginning text DEFAULT '', task text DEFAULT NULL) RETURNS boolean
LANGUAGE sql STABLE AS $$
    SELECT EXISTS (
        SELECT 1 FROM alert AS a
        WHERE
            a.kind = what AND a.raised_at > clock_timestamp() - interval '1 hour'
            AND starts_with(a.message, beginning) AND (task IS NULL OR a.task_id = task)
    )
$$;

-- For so long after its deadline a call that was sent in time may still arrive.
CREATE FUNCTION late_call_margin() RETURNS interval LANGUAGE sql IMMUTABLE AS $$
    SELECT interval '2 seconds'
$$;

-- The earliest moment at which undo may begin: where a begun step's service keeps no tombstones, nothing but time keeps
-- a late original out, so undo waits out every deadline that was ever granted to such a step, plus a margin.
CREATE FUNCTION undo_from(task text) RETURNS timestamptz LANGUAGE sql VOLATILE AS $$
    SELECT greatest(clock_timestamp(), (
        SELECT max(s.complete_by) + late_call_margin()
        FROM step AS s
        WHERE s.task_id = task AND s.quarantine_s IS NOT NULL AND s.state NOT IN ('NotStarted', 'Undone')
    ))
$$;

-- Whether the circuit breaker of a service keeps this task from calling it: open, and not the one task that probes.
CREATE FUNCTION is_blocked(called text, task text) RETURNS boolean LANGUAGE sql STABLE AS $$
    SELECT EXISTS (
        SELECT 1 FROM service AS v
        WHERE
            v.name = called
            AND CASE
                WHEN v.forced IS NULL THEN v.state = 'open' AND v.probe_task IS DISTINCT FROM task
                ELSE v.forced = 'open'
            END
    )
$$;

-- The remote services that the next attempt at a task needs at once, each with the place of its step: one for an undo,
-- those of all steps that may start side by side otherwise.
CREATE FUNCTION next_services(task text, undo boolean) RETURNS TABLE (service text, place int) LANGUAGE sql STABLE AS $$
    (
        SELECT split_part(c.action, '.', 1), 0 FROM compensation AS c
        WHERE undo AND c.task_id = task AND c.state IN ('Logged', 'Undoing', 'Failed')
        ORDER BY c.seq DESC LIMIT 1
    )
    UNION ALL
    SELECT s.service, s.position
    FROM step AS s
    INNER JOIN task AS t ON t.task_id = s.task_id
    LEFT JOIN definition AS d ON d.name = t.definition AND d.version = t.version
    WHERE
        NOT undo AND s.task_id = task AND s.state <> 'Completed'
        AND NOT EXISTS (
            SELECT 1 FROM step AS p
            WHERE
                p.task_id = s.task_id AND p.state <> 'Completed'
                AND (d.policies #> ARRAY['steps', s.name, 'after']) ? p.name
        )
$$;

-- The one of them that it needs first; null if it needs none. Rather one whose breaker is open: an attempt could not go
-- on without it, so the task waits for that.
CREATE FUNCTION next_service(task text, undo boolean) RETURNS text LANGUAGE sql STABLE AS $$
    SELECT n.service FROM next_services(task, undo) AS n ORDER BY is_blocked(n.service, task) DESC, n.place LIMIT 1
$$;

-- Seconds until number n of those that waited may go: their rate grows from nothing to `per_s` over `ramp_s`, and then
-- stays; with a jitter of less than a place in the queue.
CREATE FUNCTION paced(n bigint, per_s float8, ramp_s float8) RETURNS float8 LANGUAGE sql VOLATILE AS $$
    SELECT random() / per_s + CASE
        WHEN n <= per_s * ramp_s / 2 THEN sqrt(2 * ramp_s * n / per_s)
        ELSE ramp_s / 2 + n / per_s
    END
$$;

CREATE FUNCTION guard_event() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    IF TG_OP = 'UPDATE' THEN
        RAISE EXCEPTION 'task %, event %: events are not changed', OLD.task_id, OLD.number
            USING ERRCODE = 'check_violation', CONSTRAINT = 'events_are_append_only';
    END IF;
    IF NOT (NEW.state_from IS NOT DISTINCT FROM NEW.state_to AND NEW.kind IN ('noted', 'late_answer'))
        AND (coalesce(NEW.state_from, ''), NEW.state_to, NEW.kind) NOT IN (
            ('', 'Pending', 'submitted'),
            ('Pending', 'Pending', 'confirmed'),
            ('Pending', 'Processing', 'claimed'),
            ('Pending', 'Compensating', 'undo_requested'),
            ('Processing', 'Pending', 'released'),
            ('Processing', 'Pending', 'expired'),
            ('Processing', 'Processing', 'advanced'),
            ('Processing', 'Processing', 'gave_up'),
            ('Processing', 'Processed', 'processed'),
            ('Processing', 'Error', 'failed'),
            ('Processing', 'Error', 'expired'),
            ('Processing', 'Compensating', 'failed'),
            ('Processing', 'Compensating', 'expired'),
            ('Processing', 'Compensating', 'undo_requested'),
            ('Processed', 'Compensating', 'undo_requested'),
            ('Error', 'Pending', 'resubmitted'),
            ('Error', 'Compensating', 'undo_requested'),
            ('Compensating', 'Compensating', 'claimed'),
            ('Compensating', 'Compensating', 'undo_advanced'),
            ('Compensating', 'Compensating', 'gave_up'),
            ('Compensating', 'Compensating', 'released'),
            ('Compensating', 'Compensating', 'expired'),
            ('Compensating', 'Compensating', 'undo_repaired'),
            ('Compensating', 'Compensated', 'compensated'),
            ('Compensating', 'CompensationFailed', 'undo_failed'),
            ('Compensating', 'CompensationFailed', 'expired'),
            ('CompensationFailed', 'Compensating', 'undo_requested'),
            ('CompensationFailed', 'Compensating', 'undo_repaired')
        )
    THEN
        RAISE EXCEPTION 'task %: % -> % (%) is not a legal transition',
            NEW.task_id, NEW.state_from, NEW.state_to, NEW.kind
            USING ERRCODE = 'check_violation', CONSTRAINT = 'task_transition_is_legal';
    END IF;
    -- An expiry is the Supervisor's word, and it has no other.
    IF (NEW.kind = 'expired' OR NEW.actor = 'supervisor') AND acting_role() = 'application'
        OR (NEW.kind <> 'expired' OR NEW.actor <> 'supervisor') AND acting_role() = 'supervisor'
    THEN
        RAISE EXCEPTION 'task %: % may not say % as %', NEW.task_id, current_user, NEW.kind, NEW.actor
            USING ERRCODE = 'insufficient_privilege', CONSTRAINT = 'event_is_of_its_role';
    END IF;
    RETURN NEW;
END
$$;

CREATE TRIGGER guard_event BEFORE INSERT OR UPDATE ON event FOR EACH ROW EXECUTE FUNCTION guard_event();

-- A sweep is written down while it is made, by nobody in advance and by nobody afterwards.
CREATE FUNCTION guard_sweep() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    IF OLD.finished_at IS NOT NULL OR NEW.finished_at > clock_timestamp() OR NEW.started_at <> OLD.started_at THEN
        RAISE EXCEPTION 'sweep %: it is over, or was not made then', OLD.id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'past_sweeps_are_not_changed';
    END IF;
    RETURN NEW;
END
$$;

CREATE TRIGGER guard_sweep BEFORE UPDATE ON sweep FOR EACH ROW EXECUTE FUNCTION guard_sweep();

-- What breakers did outlives every task.
CREATE FUNCTION guard_service_event() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'service %, event %: events are not changed, and not removed', OLD.service, OLD.id
        USING ERRCODE = 'check_violation', CONSTRAINT = 'service_events_are_append_only';
END
$$;

CREATE TRIGGER guard_service_event BEFORE UPDATE OR DELETE ON service_event
    FOR EACH ROW EXECUTE FUNCTION guard_service_event();

-- An event is as true as the row it tells of: its number, states and epoch are those of the transition.
CREATE FUNCTION check_transition() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    IF NOT EXISTS (
            SELECT 1 FROM event AS e
            WHERE
                e.task_id = NEW.task_id AND e.number = NEW.last_event AND e.state_from IS NOT DISTINCT FROM OLD.state
                AND e.state_to = NEW.state AND e.epoch = NEW.epoch
        )
        AND EXISTS (SELECT 1 FROM task AS t WHERE t.task_id = NEW.task_id)
    THEN
        RAISE EXCEPTION 'task %: transition % to % has no event', NEW.task_id, NEW.last_event, NEW.state
            USING ERRCODE = 'check_violation', CONSTRAINT = 'transition_has_one_event';
    END IF;
    RETURN NULL;
END
$$;

CREATE CONSTRAINT TRIGGER check_transition AFTER INSERT OR UPDATE ON task
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION check_transition();

-- There is none without its transition. Those up to the task's last one are there: what is added is beyond.
CREATE FUNCTION check_event() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    IF NOT EXISTS (SELECT 1 FROM task AS t WHERE t.task_id = NEW.task_id AND t.last_event >= NEW.number) THEN
        RAISE EXCEPTION 'task %: event % tells of no transition', NEW.task_id, NEW.number
            USING ERRCODE = 'check_violation', CONSTRAINT = 'transition_has_one_event';
    END IF;
    RETURN NULL;
END
$$;

CREATE CONSTRAINT TRIGGER check_event AFTER INSERT ON event
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION check_event();

-- Events leave with their task only.
CREATE FUNCTION keep_event() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    IF EXISTS (SELECT 1 FROM task WHERE task_id = OLD.task_id) THEN
        RAISE EXCEPTION 'task %, event %: events are not removed while their task is there', OLD.task_id, OLD.number
            USING ERRCODE = 'check_violation', CONSTRAINT = 'events_are_append_only';
    END IF;
    RETURN NULL;
END
$$;

CREATE CONSTRAINT TRIGGER keep_event AFTER DELETE ON event
    DEFERRABLE INITIALLY DEFERRED FOR EACH ROW EXECUTE FUNCTION keep_event();

-- Every instant is one that a clock can show, and that a program can read: neither infinite nor beyond its calendar.
DO $$
DECLARE
    found record;
BEGIN
    FOR found IN
        SELECT c.table_name, string_agg(
            format('(%I BETWEEN ''0001-01-01 00:00:00+00'' AND ''9999-12-31 00:00:00+00'')', c.column_name),
            ' AND ' ORDER BY c.ordinal_position
        ) AS rule
        FROM information_schema.columns AS c
        WHERE c.table_schema = 'public' AND c.data_type = 'timestamp with time zone'
        GROUP BY c.table_name
    LOOP
        EXECUTE format('ALTER TABLE %I ADD CONSTRAINT instants_are_finite CHECK (%s)', found.table_name, found.rule);
    END LOOP;
END
$$;

-- The state machine, and who may move what, refused where it is broken: also from psql, also by a bug.
-- The moves are those of domain/states.py; a test tries every one against these triggers, by every role. Names in a guard
-- mean what they mean here, whatever the session's search_path is.

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

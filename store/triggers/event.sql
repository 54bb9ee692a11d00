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

-- Whoever moves a task to where a person must look, raises an alert by that, with what the event says.
CREATE FUNCTION alert_of_event() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    INSERT INTO alert (kind, task_id, message)
    VALUES (
        CASE NEW.state_to WHEN 'Error' THEN 'task_in_error' ELSE 'compensation_failed' END,
        NEW.task_id,
        coalesce(
            NEW.detail ->> 'cause',
            NEW.detail ->> 'skipped',
            CASE NEW.kind WHEN 'failed' THEN 'step ' ELSE 'undo of ' END || (NEW.detail ->> 'step') || ': '
            || (NEW.detail ->> 'message'),
            NEW.kind
        )
    );
    RETURN NULL;
END
$$;

CREATE TRIGGER alert_of_event AFTER INSERT ON event FOR EACH ROW
    WHEN (NEW.state_to IN ('Error', 'CompensationFailed') AND NEW.state_from <> NEW.state_to)
    EXECUTE FUNCTION alert_of_event();

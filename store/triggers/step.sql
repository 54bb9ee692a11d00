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

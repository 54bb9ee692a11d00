-- Two roles: the application (Scheduler, dispatcher, command line), and the Supervisor, which may only ask: it writes
-- the recovery fields of a task and counts failures; it can't begin, complete or undo a step (D3). Login roles are
-- made members of these by whoever deploys.
DO $$
DECLARE
    role text;
BEGIN
    FOREACH role IN ARRAY ARRAY['scheduler_app', 'scheduler_supervisor'] LOOP
        BEGIN
            EXECUTE format('CREATE ROLE %I NOLOGIN', role);
        EXCEPTION WHEN duplicate_object OR unique_violation OR insufficient_privilege THEN NULL;
        END;
    END LOOP;
END
$$;

GRANT SELECT, INSERT, UPDATE, DELETE ON task, step TO scheduler_app;
GRANT SELECT, INSERT, UPDATE ON compensation, definition, inbox, service TO scheduler_app;
GRANT SELECT, INSERT, DELETE ON event TO scheduler_app;
GRANT SELECT, INSERT ON dead_letter, alert, service_event TO scheduler_app;
GRANT SELECT ON sweep, alembic_version TO scheduler_app;

GRANT SELECT ON task, step, compensation, event, definition, alert, sweep, service, alembic_version
    TO scheduler_supervisor;
GRANT UPDATE (
    state, state_since, locked_by, run_id, complete_by, not_before, failure_count, error, last_event, updated_at
) ON task TO scheduler_supervisor;
GRANT UPDATE (failure_count) ON step TO scheduler_supervisor;
GRANT INSERT ON event, alert, sweep TO scheduler_supervisor;
GRANT UPDATE ON sweep TO scheduler_supervisor;

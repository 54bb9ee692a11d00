-- Two roles: the application (Scheduler, dispatcher, command line), and the Supervisor, which may only ask: it writes
-- the recovery fields of a task whose hold has expired, and what that costs its steps; it can't begin, complete or undo
-- one. These grants say which tables and columns each may write; the guards, which rows, moves and kinds of event.
-- When something was written, nobody says but the database. Login roles are made members of these by whoever deploys.
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
GRANT SELECT, INSERT, UPDATE ON compensation, service TO scheduler_app;
GRANT SELECT, INSERT ON definition, inbox TO scheduler_app;
GRANT SELECT, INSERT, UPDATE (seen_at), DELETE ON presence TO scheduler_app;
GRANT UPDATE (deliveries) ON inbox TO scheduler_app;
GRANT SELECT, DELETE ON event TO scheduler_app;
GRANT SELECT ON alert TO scheduler_app;
GRANT SELECT, INSERT ON dead_letter, service_event TO scheduler_app;
GRANT SELECT ON sweep, alembic_version TO scheduler_app;
GRANT INSERT ON stale_run TO scheduler_app;

-- Not a claim's nonce, by which its run is known: who holds a task is not the Supervisor's to say.
GRANT SELECT (
    task_id, definition, version, state, state_since, progress_at, confirmed, waiting, locked_by, run_id, worker, epoch,
    complete_by, not_before, failure_count, created_at, updated_at, last_event, last_seq, error
) ON task TO scheduler_supervisor;
GRANT SELECT ON step, compensation, event, definition, presence, alert, sweep, service, alembic_version
    TO scheduler_supervisor;
GRANT UPDATE (
    state, progress_at, locked_by, run_id, complete_by, not_before, failure_count, error, last_event
) ON task TO scheduler_supervisor;
GRANT UPDATE (failure_count, budget, budget_left, undo_budget, undo_budget_left) ON step TO scheduler_supervisor;
GRANT INSERT, UPDATE ON sweep TO scheduler_supervisor;
GRANT SELECT, INSERT, UPDATE, DELETE ON stale_run TO scheduler_supervisor;

GRANT INSERT (task_id, number, kind, state_from, state_to, epoch, actor, detail) ON event
    TO scheduler_app, scheduler_supervisor;
GRANT INSERT (kind, task_id, message) ON alert TO scheduler_app, scheduler_supervisor;

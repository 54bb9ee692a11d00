CREATE TABLE business_record (
    task_id VARCHAR NOT NULL,
    definition TEXT NOT NULL,
    record JSONB,
    digest TEXT NOT NULL,
    amendments INTEGER DEFAULT '0' NOT NULL,
    amendment TEXT,
    outcome TEXT,
    created_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
    updated_at TIMESTAMP WITH TIME ZONE DEFAULT clock_timestamp() NOT NULL,
    PRIMARY KEY (task_id),
    CONSTRAINT instants_are_finite CHECK (
        (created_at BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 00:00:00+00')
        AND (updated_at BETWEEN '0001-01-01 00:00:00+00' AND '9999-12-31 00:00:00+00')
    )
);

DO $$
BEGIN
    CREATE ROLE scheduler_app NOLOGIN;
EXCEPTION WHEN duplicate_object OR unique_violation OR insufficient_privilege THEN NULL;
END
$$;

GRANT SELECT, INSERT, UPDATE ON business_record, alembic_version TO scheduler_app;
REVOKE INSERT, UPDATE ON alembic_version FROM scheduler_app;

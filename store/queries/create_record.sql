-- Creates a business record, or starts over one that was abandoned; leaves any other as it is.
INSERT INTO business_record AS b (task_id, definition, record, digest)
VALUES (%(task_id)s, %(definition)s, %(record)s::jsonb, %(digest)s)
ON CONFLICT (task_id) DO UPDATE SET
    definition = excluded.definition, record = excluded.record, digest = excluded.digest, outcome = NULL,
    updated_at = clock_timestamp()
WHERE b.outcome = 'abandoned'

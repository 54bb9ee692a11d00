-- Puts an abandoned record where there is none, so that no late writer can complete the pair; returns a row unless the
-- submission's own record is there: another's record, of another digest, does not complete it.
WITH added AS (
    INSERT INTO business_record (task_id, definition, digest, outcome)
    VALUES (%(task_id)s, %(definition)s, '', 'abandoned')
    ON CONFLICT (task_id) DO NOTHING
    RETURNING task_id
)
SELECT task_id FROM added
UNION ALL
SELECT task_id FROM business_record WHERE task_id = %(task_id)s AND digest <> %(digest)s

-- Keeps a submission that contradicts the record as it came, and alerts an operator; overwrites nothing, and does
-- nothing where the same message is kept already.
WITH kept AS (
    INSERT INTO dead_letter (task_id, submitter, reason, message, digest)
    VALUES (%(task_id)s, %(submitter)s, %(reason)s, %(letter)s::jsonb, %(digest)s)
    ON CONFLICT (task_id, digest) DO NOTHING
    RETURNING task_id, reason
)
INSERT INTO alert (kind, task_id, message)
SELECT 'dead_letter', task_id, reason FROM kept

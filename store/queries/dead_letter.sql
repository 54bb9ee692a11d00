-- Keeps a submission that contradicts the record as it came, and alerts an operator; overwrites nothing (A4).
WITH kept AS (
    INSERT INTO dead_letter (task_id, submitter, reason, message)
    VALUES (%(task_id)s, %(submitter)s, %(reason)s, %(message)s::jsonb)
    RETURNING task_id, reason
)
INSERT INTO alert (kind, task_id, message)
SELECT 'dead_letter', task_id, reason FROM kept
RETURNING id

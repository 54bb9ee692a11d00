-- One page of submissions that were not finished within the grace, oldest first. Reads only.
SELECT task_id, definition, record_digest AS digest, submitter, created_at
FROM task
WHERE
    NOT confirmed
    AND created_at <= (SELECT clock_timestamp()) - make_interval(secs => %(grace_s)s)
    AND (created_at, task_id) > (%(after_at)s, %(after_id)s)
ORDER BY created_at, task_id
LIMIT %(page)s

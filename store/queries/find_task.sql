-- What is on record of a task, to compare a submission with.
SELECT definition, version, record_digest, created_at, last_event FROM task WHERE task_id = %(task_id)s

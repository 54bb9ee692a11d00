-- What is on record of a task, to compare a submission with.
SELECT definition, record_digest, state FROM task WHERE task_id = %(task_id)s

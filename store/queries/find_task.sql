-- What is on record of a task, to compare a submission with.
SELECT definition, version, record_digest FROM task WHERE task_id = %(task_id)s

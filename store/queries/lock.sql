-- Takes the task's row lock, so that the statement behind it in the same transaction decides on a fresh snapshot.
SELECT 1 FROM task WHERE task_id = %(task_id)s FOR UPDATE

-- Raises an alert unless one of its kind was raised within the hour; with `each_task`, unless one of its kind on that task
-- was: for what goes wrong again and again.
INSERT INTO alert (kind, task_id, message)
SELECT %(kind)s, %(task_id)s, %(message)s
WHERE NOT alerted_lately(%(kind)s, task => CASE WHEN %(each_task)s THEN %(task_id)s END)

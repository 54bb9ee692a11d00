-- Raises an alert unless one of its kind was raised within the hour: for what goes wrong again and again.
INSERT INTO alert (kind, task_id, message)
SELECT %(kind)s, %(task_id)s, %(message)s
WHERE NOT EXISTS (
    SELECT 1 FROM alert WHERE kind = %(kind)s AND raised_at > clock_timestamp() - interval '1 hour'
)
RETURNING id

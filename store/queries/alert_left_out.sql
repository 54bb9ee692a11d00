-- Alerts on a task that can't be recovered, once within the hour.
INSERT INTO alert (kind, task_id, message)
SELECT 'not_recovered', %(task_id)s, %(message)s
WHERE NOT EXISTS (
    SELECT 1 FROM alert
    WHERE
        kind = 'not_recovered' AND task_id = %(task_id)s AND raised_at > clock_timestamp() - interval '1 hour'
)
RETURNING id

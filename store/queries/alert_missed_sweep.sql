-- Alerts on a missed sweep, once an outage: not again before a sweep has finished.
INSERT INTO alert (kind, message)
SELECT 'missed_sweep', %(message)s
WHERE NOT EXISTS (
    SELECT 1 FROM alert
    WHERE kind = 'missed_sweep' AND raised_at > coalesce((SELECT max(finished_at) FROM sweep), '-infinity')
)
RETURNING id

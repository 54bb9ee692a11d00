-- Attempts that have lost their task, and whose runs are to be looked at: first those that wait longest. Reads only.
SELECT attempt, given_up FROM stale_run
WHERE due_at <= (SELECT clock_timestamp())
ORDER BY due_at
LIMIT %(most)s

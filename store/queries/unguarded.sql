-- Says so if triggers don't fire for this session's role: nothing would guard the tables. Reads only.
SELECT format('the guards of its tables are off for %I: ALTER ROLE %I RESET session_replication_role', user, user)
WHERE current_setting('session_replication_role') <> 'origin'

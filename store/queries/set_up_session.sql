-- Sets what code and statements rely on, whatever the role, the database or a shell has for it. Of the last three: one is
-- lacking in older servers, and two are left as the server itself has them; one that is told to take no writes is out of
-- reach.
SET client_encoding = 'UTF8';
SET search_path = public;
SET DateStyle = 'ISO, YMD';
SET IntervalStyle = 'postgres';
SET TimeZone = 'UTC';
SET bytea_output = 'hex';
SET extra_float_digits = 1;
SET standard_conforming_strings = on;
SET row_security = on;
SET default_transaction_isolation = 'read committed';
SET default_transaction_deferrable = off;
SET jit = off;
SET plan_cache_mode = auto;
SET enable_indexscan = on;
SET enable_indexonlyscan = on;
SET lock_timeout = 0;
SET idle_session_timeout = 0;
SET idle_in_transaction_session_timeout = 0;
SELECT set_config(s.name, ours.value, false)
FROM pg_settings AS s
INNER JOIN (VALUES
    ('transaction_timeout', '0', false),
    ('default_transaction_read_only', 'off', true),
    ('synchronous_commit', 'on', true)
) AS ours (name, value, of_the_server) ON ours.name = s.name
WHERE NOT (ours.of_the_server AND s.source IN ('default', 'configuration file', 'command line'))

-- One more attempt in a row that failed at a service. At the threshold its breaker opens, with an alert; a probe that
-- failed keeps it open for longer: the pause before the next one doubles, up to its most. No report counts twice: the
-- row has the last ones, as many as lead to its opening.
WITH seen AS MATERIALIZED (
    SELECT
        name, coalesce('forced ' || forced, state) AS state_from,
        state = 'closed' AND failures + 1 >= %(threshold)s AS trips,
        state = 'open' AND coalesce(probe_task = %(task_id)s, false) AS probe_failed
    FROM service WHERE name = %(name)s AND %(report)s <> ALL (reports)
    FOR UPDATE
),
moved AS (
    UPDATE service AS v SET
        failures = v.failures + 1,
        reports = (array_prepend(%(report)s::text, v.reports))[1:%(threshold)s],
        cause = %(cause)s,
        state = CASE WHEN s.trips THEN 'open' ELSE v.state END,
        since = CASE WHEN s.trips THEN clock_timestamp() ELSE v.since END,
        openings = v.openings + CASE WHEN s.trips OR s.probe_failed THEN 1 ELSE 0 END,
        retry_at = CASE
            WHEN s.trips OR s.probe_failed THEN clock_timestamp() + make_interval(
                secs => least(%(longest_pause_s)s, %(pause_s)s * 2.0 ^ least(v.openings, 20)) * (0.75 + random() / 4)
            )
            ELSE v.retry_at
        END,
        probe_task = CASE WHEN s.probe_failed THEN NULL ELSE v.probe_task END,
        probe_until = CASE WHEN s.probe_failed THEN NULL ELSE v.probe_until END
    FROM seen AS s
    WHERE v.name = s.name
    RETURNING
        v.name, v.failures, v.cause, v.retry_at, s.trips, s.probe_failed, s.state_from,
        coalesce('forced ' || v.forced, v.state) AS state_to
),
logged AS (
    INSERT INTO service_event (service, kind, state_from, state_to, task_id, until, cause)
    SELECT
        name, CASE WHEN trips THEN 'opened' ELSE 'probe_failed' END, state_from, state_to, %(task_id)s, retry_at, cause
    FROM moved WHERE trips OR probe_failed
),
alerted AS (
    INSERT INTO alert (kind, message)
    SELECT 'breaker_open', format('service %%s: %%s attempts in a row failed, last: %%s', name, failures, cause)
    FROM moved WHERE trips
)
SELECT name, trips FROM moved

-- Alerts on open tasks that were claimed and make no progress, whatever goes round: no release, expiry or claim
-- but the first moves `progress_at`. Allowed is, beyond the time after which a task counts as stuck, what its definition makes it wait
-- on purpose: its longest step, extended wait and quarantine. One alert a definition version within the hour.
WITH allowed AS MATERIALIZED (
    SELECT d.name, d.version, make_interval(secs => %(stuck_after_s)s + (
        SELECT coalesce(sum(w.most), 0)::float8
        FROM unnest(ARRAY['$.steps.*.within_s', '$.steps.*.quarantine_s', '$.extended_wait_s']) AS p (path)
        CROSS JOIN LATERAL (
            SELECT max(least(v::numeric, 1e9)) AS most FROM jsonb_path_query(d.policies, p.path::jsonpath) AS v
            WHERE jsonb_typeof(v) = 'number'
        ) AS w
    )) AS time
    FROM definition AS d
),
late AS MATERIALIZED (
    SELECT a.name, a.version, t.task_id, t.progress_at, left(coalesce(e.cause, 'nothing was said'), 200) AS cause
    FROM allowed AS a
    CROSS JOIN LATERAL (
        SELECT t.task_id, t.progress_at FROM task AS t
        WHERE
            t.definition = a.name AND t.version = a.version
            AND t.epoch > 0 AND t.state IN ('Pending', 'Processing', 'Compensating')
            AND t.progress_at <= (SELECT clock_timestamp()) - a.time
        ORDER BY t.progress_at, t.task_id
        LIMIT %(most)s
    ) AS t
    LEFT JOIN LATERAL (
        SELECT e.detail ->> 'cause' AS cause FROM event AS e
        WHERE e.task_id = t.task_id AND e.detail ? 'cause'
        ORDER BY e.number DESC
        LIMIT 1
    ) AS e ON true
),
said AS (
    SELECT name, version, string_agg(format('%%s of %%s', cause, number), '; ' ORDER BY number DESC, cause) AS causes
    FROM (
        SELECT
            name, version, cause, count(*) AS number,
            row_number() OVER (PARTITION BY name, version ORDER BY count(*) DESC, cause) AS place
        FROM late GROUP BY name, version, cause
    ) AS c
    WHERE place <= 3
    GROUP BY name, version
)
INSERT INTO alert (kind, message)
SELECT 'no_progress', format(
    '%%s v%%s: %%s tasks are open without progress, the longest, %%s, for %%s s; last said: %%s', l.name, l.version,
    count(*), (array_agg(l.task_id ORDER BY l.progress_at, l.task_id))[1],
    round(extract(epoch FROM clock_timestamp() - min(l.progress_at))), s.causes
)
FROM late AS l INNER JOIN said AS s ON s.name = l.name AND s.version = l.version
GROUP BY l.name, l.version, s.causes
HAVING NOT alerted_lately('no_progress', l.name || ' v' || l.version || ':')

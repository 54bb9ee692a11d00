-- Says that a worker has its definitions no more: each was last seen when another that is still there showed it.
WITH gone AS (
    DELETE FROM presence WHERE worker = %(worker)s RETURNING name, version
)
UPDATE definition AS d SET seen_at = (
    SELECT max(p.seen_at) FROM presence AS p
    WHERE p.name = d.name AND p.version = d.version AND p.worker <> %(worker)s
)
FROM gone AS g
WHERE d.name = g.name AND d.version = g.version

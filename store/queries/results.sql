-- Recorded results of some steps, in order, until `most_bytes` are full, but of one at least. Reads only.
SELECT r.name, r.result
FROM (
    SELECT
        s.name, s.position, s.result,
        coalesce(sum(octet_length(s.result::text)) OVER (
            ORDER BY s.position ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING
        ), 0) AS bytes_before
    FROM step AS s
    WHERE s.task_id = %(task_id)s AND s.name = ANY(%(steps)s) AND s.result IS NOT NULL
) AS r
WHERE r.bytes_before < %(most_bytes)s
ORDER BY r.position

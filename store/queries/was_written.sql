-- Whether a write that changed nothing had been committed before: then its acknowledgement was lost. An attempt releases,
-- or gives up, once; a person's request has an id of its own. Reads only.
SELECT 1 FROM event
WHERE
    task_id = %(task_id)s AND kind = %(kind)s AND actor = %(actor)s
    AND (%(request)s::text IS NULL OR detail ->> 'request' = %(request)s)
LIMIT 1

-- Records what a sweep did, once; what it changed, each page has recorded itself.
UPDATE sweep SET
    finished_at = clock_timestamp(), found = %(found)s, pages = %(pages)s, oldest_overdue_s = %(oldest_overdue_s)s
WHERE id = %(sweep)s AND finished_at IS NULL

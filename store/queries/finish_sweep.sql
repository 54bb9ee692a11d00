-- Records that a sweep is over, once.
UPDATE sweep SET finished_at = clock_timestamp() WHERE id = %(sweep)s AND finished_at IS NULL

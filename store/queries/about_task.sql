-- What is said of a task beside its rows: the time now, and the service whose open breaker keeps it from its next step,
-- or from its next step's undo. Reads only.
SELECT clock_timestamp() AS now, late_call_margin() AS margin, needs.service AS blocked_by
FROM task AS t
LEFT JOIN LATERAL (SELECT next_service(t.task_id, t.state = 'Compensating') AS service) AS needs
    ON is_blocked(needs.service, t.task_id)
WHERE t.task_id = %(task_id)s

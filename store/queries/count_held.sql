-- How many tasks fill a worker's slots: held, and not only waiting for a later answer. Reads only.
SELECT count(*) AS held FROM task WHERE worker = %(worker)s AND locked_by IS NOT NULL AND NOT waiting

-- Puts an abandoned record where there is none, so that no late writer can complete the pair unseen.
INSERT INTO business_record (task_id, definition, digest, outcome)
VALUES (%(task_id)s, %(definition)s, '', 'abandoned')
ON CONFLICT (task_id) DO NOTHING

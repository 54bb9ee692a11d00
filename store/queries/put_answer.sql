-- Keeps an answer once by its response id; a repetition is only counted.
INSERT INTO inbox AS i (response_id, key, body)
VALUES (%(response_id)s, %(key)s, %(body)s::jsonb)
ON CONFLICT (response_id) DO UPDATE SET deliveries = i.deliveries + 1
RETURNING i.deliveries

-- Keeps an answer once by its key and response id; a repetition is only counted.
INSERT INTO inbox AS i (response_id, key, body)
VALUES (%(response_id)s, %(key)s, %(body)s::jsonb)
ON CONFLICT (key, response_id) DO UPDATE SET deliveries = i.deliveries + 1
RETURNING i.deliveries

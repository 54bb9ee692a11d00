-- Seconds until number n of those that waited may go: their rate grows from nothing to `per_s` over `ramp_s`, and then
-- stays; with a jitter of less than a place in the queue.
CREATE FUNCTION paced(n bigint, per_s float8, ramp_s float8) RETURNS float8 LANGUAGE sql VOLATILE AS $$
    SELECT random() / per_s + CASE
        WHEN n <= per_s * ramp_s / 2 THEN sqrt(2 * ramp_s * n / per_s)
        ELSE ramp_s / 2 + n / per_s
    END
$$;

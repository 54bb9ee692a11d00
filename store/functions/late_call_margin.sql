-- For so long after its deadline a call that was sent in time may still arrive.
CREATE FUNCTION late_call_margin() RETURNS interval LANGUAGE sql IMMUTABLE AS $$
    SELECT interval '2 seconds'
$$;

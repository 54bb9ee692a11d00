-- What breakers did outlives every task.
CREATE FUNCTION guard_service_event() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    RAISE EXCEPTION 'service %, event %: events are not changed, and not removed', OLD.service, OLD.id
        USING ERRCODE = 'check_violation', CONSTRAINT = 'service_events_are_append_only';
END
$$;

CREATE TRIGGER guard_service_event BEFORE UPDATE OR DELETE ON service_event
    FOR EACH ROW EXECUTE FUNCTION guard_service_event();

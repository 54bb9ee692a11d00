-- A sweep is written down while it is made, by nobody in advance and by nobody afterwards.
CREATE FUNCTION guard_sweep() RETURNS trigger LANGUAGE plpgsql SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    IF OLD.finished_at IS NOT NULL OR NEW.finished_at > clock_timestamp() OR NEW.started_at <> OLD.started_at THEN
        RAISE EXCEPTION 'sweep %: it is over, or was not made then', OLD.id
            USING ERRCODE = 'check_violation', CONSTRAINT = 'past_sweeps_are_not_changed';
    END IF;
    RETURN NEW;
END
$$;

CREATE TRIGGER guard_sweep BEFORE UPDATE ON sweep FOR EACH ROW EXECUTE FUNCTION guard_sweep();

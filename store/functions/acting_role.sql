-- Who acts, by the database's own word: the owner of the tables; the application; or the Supervisor, and whoever else was
-- given some right.
CREATE FUNCTION acting_role() RETURNS text LANGUAGE plpgsql STABLE SET search_path = pg_catalog, public, pg_temp AS $$
BEGIN
    RETURN CASE
        WHEN pg_has_role(current_user, (SELECT relowner FROM pg_class WHERE oid = 'public.task'::regclass), 'USAGE')
            THEN 'owner'
        WHEN pg_has_role(current_user, 'scheduler_app', 'USAGE') THEN 'application'
        ELSE 'supervisor'
    END;
END
$$;

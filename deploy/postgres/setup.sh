#!/bin/bash
# Roles, databases and rights, each right as narrow as its user needs. Safe to repeat: what is missing is made, and a
# changed password takes effect. Tables, their grants, and the guards that hold each role to its own moves come from the
# migrations, which run as sas_owner. A login is a member of one group only: one of both would count as the application,
# and could not sweep. Expects PGHOST, and PGPASSWORD of the superuser.
set -euo pipefail

weak() {
    echo "$1: $2, for example from openssl rand -hex 24; change it in .env" >&2
    exit 2
}
[[ ${#PGPASSWORD} -ge 16 ]] || weak POSTGRES_PASSWORD "at least 16 characters"
for name in POSTGRES_OWNER_PASSWORD POSTGRES_APP_PASSWORD POSTGRES_SUPERVISOR_PASSWORD POSTGRES_TEMPORAL_PASSWORD; do
    # They become part of URLs.
    [[ ${!name-} =~ ^[A-Za-z0-9]{16,}$ ]] || weak "$name" "at least 16 letters and digits"
done

psql --set ON_ERROR_STOP=1 --no-psqlrc --quiet --username postgres --dbname postgres \
    --set owner_password="$POSTGRES_OWNER_PASSWORD" \
    --set app_password="$POSTGRES_APP_PASSWORD" \
    --set supervisor_password="$POSTGRES_SUPERVISOR_PASSWORD" \
    --set temporal_password="$POSTGRES_TEMPORAL_PASSWORD" <<'SQL'
SET client_min_messages = warning;
-- The migrations grant to the group roles; people and processes log in as their members.
SELECT format('CREATE ROLE %I', name)
FROM unnest(ARRAY[
    'scheduler_app', 'scheduler_supervisor', 'sas_owner', 'sas_app', 'sas_supervisor', 'temporal'
]) AS name
WHERE NOT EXISTS (SELECT FROM pg_roles WHERE rolname = name) \gexec

ALTER ROLE sas_owner LOGIN PASSWORD :'owner_password';
ALTER ROLE sas_app LOGIN PASSWORD :'app_password';
ALTER ROLE sas_supervisor LOGIN PASSWORD :'supervisor_password';
ALTER ROLE temporal LOGIN PASSWORD :'temporal_password';
GRANT scheduler_app TO sas_app;
GRANT scheduler_supervisor TO sas_supervisor;

SELECT format('CREATE DATABASE %I OWNER %I TEMPLATE template0 ENCODING ''UTF8''', name, owner)
FROM (VALUES
    ('scheduler', 'sas_owner'), ('orders', 'sas_owner'), ('temporal', 'temporal'), ('temporal_visibility', 'temporal')
) AS wanted (name, owner)
WHERE NOT EXISTS (SELECT FROM pg_database WHERE datname = name) \gexec

-- Nobody connects to a database that is not theirs.
REVOKE CONNECT, TEMPORARY ON DATABASE postgres, template1, scheduler, orders, temporal, temporal_visibility FROM PUBLIC;
GRANT CONNECT ON DATABASE scheduler TO scheduler_app, scheduler_supervisor;
GRANT CONNECT ON DATABASE orders TO scheduler_app;
SQL
echo "roles, databases and rights are there"

#!/bin/bash
# Runs once, when the data volume is empty: roles and databases, each right as narrow as its user needs.
# Tables, their grants, and the guards that hold each role to its own moves come from the migrations, which run as
# sas_owner. A login is a member of one group only: one of both would count as the application, and could not sweep.
set -euo pipefail

psql -v ON_ERROR_STOP=1 --username "$POSTGRES_USER" --dbname postgres \
    -v owner_password="${POSTGRES_OWNER_PASSWORD:?}" \
    -v app_password="${POSTGRES_APP_PASSWORD:?}" \
    -v supervisor_password="${POSTGRES_SUPERVISOR_PASSWORD:?}" \
    -v temporal_password="${POSTGRES_TEMPORAL_PASSWORD:?}" <<'SQL'
-- The migrations grant to the group roles; people and processes log in as their members.
CREATE ROLE scheduler_app NOLOGIN;
CREATE ROLE scheduler_supervisor NOLOGIN;

CREATE ROLE sas_owner LOGIN PASSWORD :'owner_password';
CREATE ROLE sas_app LOGIN PASSWORD :'app_password' IN ROLE scheduler_app;
CREATE ROLE sas_supervisor LOGIN PASSWORD :'supervisor_password' IN ROLE scheduler_supervisor;
CREATE ROLE temporal LOGIN PASSWORD :'temporal_password';

CREATE DATABASE scheduler OWNER sas_owner;
CREATE DATABASE orders OWNER sas_owner;
CREATE DATABASE temporal OWNER temporal;
CREATE DATABASE temporal_visibility OWNER temporal;

-- Nobody connects to a database that is not theirs.
REVOKE CONNECT, TEMPORARY ON DATABASE postgres, scheduler, orders, temporal, temporal_visibility FROM PUBLIC;
GRANT CONNECT ON DATABASE scheduler TO scheduler_app, scheduler_supervisor;
GRANT CONNECT ON DATABASE orders TO scheduler_app;
SQL

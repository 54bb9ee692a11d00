#!/bin/sh
# Brings both of Temporal's databases to the schema of this admin-tools version. Safe to repeat.
# Expects POSTGRES_HOST and SQL_PASSWORD (read by temporal-sql-tool itself).
set -eu

versions=/etc/temporal/schema/postgresql/v12

migrate() {
    database=$1 directory=$2
    set -- --plugin postgres12 --ep "$POSTGRES_HOST" --port 5432 --user temporal --database "$database"
    # Makes the version table. On a later start it exists, and what counts is whether the update succeeds.
    temporal-sql-tool "$@" setup-schema --version 0.0 || echo "$database: keeping the schema that is there"
    temporal-sql-tool "$@" update-schema --schema-dir "$versions/$directory/versioned"
}

migrate temporal temporal
migrate temporal_visibility visibility

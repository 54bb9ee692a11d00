#!/bin/sh
# Brings both of Temporal's databases to the schema of this temporal-sql-tool, which holds it. Safe to repeat.
# Expects POSTGRES_HOST and SQL_PASSWORD (read by temporal-sql-tool itself); POSTGRES_PORT is 5432 unless it is set.
set -eu

migrate() {
    database=$1 schema=$2
    set -- --plugin postgres12 --ep "$POSTGRES_HOST" --port "${POSTGRES_PORT:-5432}" --user temporal --database "$database"
    # Makes the version table. On a later start it exists, and what counts is whether the update succeeds.
    temporal-sql-tool "$@" setup-schema --version 0.0 || echo "$database: keeping the schema that is there"
    temporal-sql-tool "$@" update-schema --schema-name "postgresql/v12/$schema"
}

migrate temporal temporal
migrate temporal_visibility visibility

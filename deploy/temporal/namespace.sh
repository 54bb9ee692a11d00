#!/bin/sh
# Makes the namespace and the search attributes that tasks are found by. Safe to repeat.
# Expects TEMPORAL_ADDRESS and TEMPORAL_NAMESPACE (read by the temporal command itself) and RETENTION.
set -eu

# The port opens before the cluster can serve: ask until it says so, for two minutes at most.
attempt=0
until temporal operator cluster health >/dev/null 2>&1; do
    attempt=$((attempt + 1))
    if [ "$attempt" -ge 60 ]; then
        echo "Temporal at $TEMPORAL_ADDRESS did not become healthy" >&2
        exit 1
    fi
    sleep 2
done

temporal operator namespace describe --namespace "$TEMPORAL_NAMESPACE" >/dev/null 2>&1 ||
    temporal operator namespace create --namespace "$TEMPORAL_NAMESPACE" --retention "${RETENTION:-7d}"

# A new namespace takes a few seconds to be known everywhere.
attempt=0
until temporal operator search-attribute create \
    --name TaskId --type Keyword \
    --name TaskDefinition --type Keyword \
    --name TaskSubmitter --type Keyword \
    --name TaskAttempt --type Int \
    --name TaskState --type Keyword; do
    attempt=$((attempt + 1))
    if [ "$attempt" -ge 15 ]; then
        echo "could not create the search attributes" >&2
        exit 1
    fi
    sleep 2
done

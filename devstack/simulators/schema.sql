-- One ledger a service. Instants are ISO 8601 texts in UTC with microseconds, so they sort as text.
CREATE TABLE IF NOT EXISTS operation (  -- at most one row a key: the effect, its saved answer, or its tombstone
    key         TEXT PRIMARY KEY,
    task_id     TEXT NOT NULL,
    step        TEXT NOT NULL,
    path        TEXT NOT NULL,
    state       TEXT NOT NULL CHECK (state IN ('done', 'refused', 'undone', 'tombstone')),
    token       INTEGER NOT NULL,
    fingerprint TEXT,
    body        TEXT,
    status      INTEGER,
    answer      TEXT,
    created_at  TEXT NOT NULL,
    undone_at   TEXT,
    CHECK ((undone_at IS NOT NULL) = (state IN ('undone', 'tombstone')))
) STRICT;
CREATE INDEX IF NOT EXISTS operation_by_task ON operation (task_id);

CREATE TABLE IF NOT EXISTS fence (      -- the highest token seen for each task
    task_id     TEXT PRIMARY KEY,
    token       INTEGER NOT NULL
) STRICT;

CREATE TABLE IF NOT EXISTS call (       -- every request for an effect or an undo, whatever became of it
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    key          TEXT,
    task_id      TEXT,
    path         TEXT NOT NULL,
    undo         INTEGER NOT NULL,
    token        INTEGER,
    time_left_ms INTEGER,
    received_at  TEXT NOT NULL,
    duplicate    INTEGER NOT NULL,      -- 1: the second delivery that a 'duplicate' fault made
    faults       TEXT NOT NULL,         -- JSON list of the kinds injected into this call
    outcome      TEXT NOT NULL,         -- 'received' until it is decided
    status       INTEGER,               -- what the rules answered; the reply itself may have been lost
    decided_at   TEXT                   -- when the outcome was; later than received_at by an injected delay
) STRICT;
CREATE INDEX IF NOT EXISTS call_by_task ON call (task_id);

CREATE TABLE IF NOT EXISTS probe (      -- every question what became of a key
    id           INTEGER PRIMARY KEY AUTOINCREMENT,
    key          TEXT NOT NULL,
    task_id      TEXT NOT NULL,
    token        INTEGER,
    time_left_ms INTEGER,
    received_at  TEXT NOT NULL
) STRICT;
CREATE INDEX IF NOT EXISTS probe_by_task ON probe (task_id);

CREATE TABLE IF NOT EXISTS undo_answer ( -- what each undo was answered, by its own key
    key          TEXT PRIMARY KEY,
    status       INTEGER NOT NULL,
    answer       TEXT NOT NULL
) STRICT;

CREATE TABLE IF NOT EXISTS callback (   -- machines that are finished, and whether their owner has been told
    key          TEXT PRIMARY KEY,
    url          TEXT NOT NULL,
    payload      TEXT NOT NULL,
    finished_at  TEXT NOT NULL,
    attempts     INTEGER NOT NULL DEFAULT 0,
    delivered_at TEXT
) STRICT;

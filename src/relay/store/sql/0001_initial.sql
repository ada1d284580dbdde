-- One row per session. Entries with seq in (floor, seq] are its log; bytes is what they hold.
CREATE TABLE session (
    id         INTEGER PRIMARY KEY AUTOINCREMENT,  -- the order of creation
    session_id TEXT    NOT NULL UNIQUE,
    epoch      TEXT    NOT NULL,
    seq        INTEGER NOT NULL,
    floor      INTEGER NOT NULL,
    bytes      INTEGER NOT NULL,
    pending    INTEGER NOT NULL,
    created_ms INTEGER NOT NULL,
    active_ms  INTEGER NOT NULL
);

-- The log. A pending prompt stays here even below the floor, until it is answered.
CREATE TABLE entry (
    session INTEGER NOT NULL,
    seq     INTEGER NOT NULL,
    kind    TEXT    NOT NULL,
    ts              NOT NULL,  -- no type: an integer stays one, a fraction too
    data    BLOB    NOT NULL,
    PRIMARY KEY (session, seq)
) WITHOUT ROWID;

-- Every id ever used in a session, for as long as the session lives.
CREATE TABLE message (
    session     INTEGER NOT NULL,
    kind        TEXT    NOT NULL,
    message_id  TEXT    NOT NULL,
    seq         INTEGER NOT NULL,
    fingerprint BLOB    NOT NULL,
    PRIMARY KEY (session, kind, message_id)
) WITHOUT ROWID;

CREATE TABLE pending (
    session INTEGER NOT NULL,
    seq     INTEGER NOT NULL,
    PRIMARY KEY (session, seq)
) WITHOUT ROWID;

-- Written after a failure, to see whether a message of the largest size can be kept again.
CREATE TABLE probe (
    id     INTEGER PRIMARY KEY CHECK (id = 1),
    filler BLOB NOT NULL
);

-- One row per session, as its log stood at seq; what came later is in the journal. Entries with seq in (floor, seq] are
-- its log; bytes is what they hold.
CREATE TABLE session (
    id         INTEGER PRIMARY KEY,  -- the order of creation
    session_id TEXT    NOT NULL UNIQUE,
    epoch      TEXT    NOT NULL,
    seq        INTEGER NOT NULL,
    floor      INTEGER NOT NULL,
    bytes      INTEGER NOT NULL,
    pending    INTEGER NOT NULL,
    created_ms INTEGER NOT NULL,
    active_ms  INTEGER NOT NULL
);

-- What was committed last, one row per transaction: all that was decided, in its order. It goes to the other tables
-- later, many messages at a time: a page that takes one row costs as much as one that takes 32.
CREATE TABLE journal (
    id    INTEGER PRIMARY KEY,
    steps BLOB    NOT NULL
);

-- The log, in pieces: the entries first … last of a session, one after the other. The pieces of all sessions stand in
-- the order in which they were written; clustered by session, each would be on a page of its own. Below the floor a
-- piece stays while a prompt in it is pending.
CREATE TABLE piece (
    id      INTEGER PRIMARY KEY,
    session INTEGER NOT NULL,
    first   INTEGER NOT NULL,
    last    INTEGER NOT NULL,
    min_ts          NOT NULL,  -- no type: an integer stays one, a fraction too
    max_ts          NOT NULL,
    entries BLOB    NOT NULL
);
CREATE UNIQUE INDEX piece_of_session ON piece (session, last);

-- Every id ever used in a session, for as long as the session lives.
CREATE TABLE prompt (
    session    INTEGER NOT NULL,
    message_id TEXT    NOT NULL,
    seq        INTEGER NOT NULL,
    PRIMARY KEY (session, message_id)
) WITHOUT ROWID;

CREATE TABLE response (
    session     INTEGER NOT NULL,
    message_id  TEXT    NOT NULL,
    fingerprint BLOB    NOT NULL,
    PRIMARY KEY (session, message_id)
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

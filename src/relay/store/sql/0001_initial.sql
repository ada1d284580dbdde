-- One row per session, since it was first moved out of the journal. Its newest part tells how its log stands.
CREATE TABLE session (
    id         INTEGER PRIMARY KEY,  -- the order of creation
    session_id TEXT    NOT NULL UNIQUE,
    epoch      TEXT    NOT NULL,
    created_ms INTEGER NOT NULL,
    active_ms  INTEGER NOT NULL      -- or later: see its newest part
);

-- What was committed last, one row per transaction: all that was decided, in its order. It goes to the other tables
-- later, many messages at a time: a page that takes one row costs as much as one that takes 32.
CREATE TABLE journal (
    id    INTEGER PRIMARY KEY,
    steps BLOB    NOT NULL
);

-- Entries of a log, one after the other. The pieces of all sessions stand in the order in which they were written;
-- clustered by session, each would be on a page of its own.
CREATE TABLE piece (
    id      INTEGER PRIMARY KEY,
    entries BLOB    NOT NULL
);

-- Where the entries first … last of a session are, and how its log stood after them: entries with seq in (floor, last]
-- were its log, which held so many bytes, and so many prompts were pending. No floor: a large message, which has its
-- piece before it is moved out of the journal. Below the floor a part stays while a prompt in it waits, or if it is the
-- newest.
CREATE TABLE part (
    session   INTEGER NOT NULL,
    last      INTEGER NOT NULL,
    first     INTEGER NOT NULL,
    piece     INTEGER NOT NULL,
    min_ts            NOT NULL,  -- no type: an integer stays one, a fraction too
    max_ts            NOT NULL,
    waiting   INTEGER NOT NULL,  -- a bit for each entry, the first one's lowest: whether it is a prompt that waits
    floor     INTEGER,
    bytes     INTEGER,
    pending   INTEGER,
    active_ms INTEGER,
    PRIMARY KEY (session, last)
) WITHOUT ROWID;

-- How each session stands, as far as the tables know.
CREATE VIEW known AS
    SELECT s.id, s.session_id, s.epoch, p.last AS seq, p.floor, p.bytes, p.pending, s.created_ms,
           max(s.active_ms, p.active_ms) AS active_ms
    FROM session s CROSS JOIN part p ON p.session = s.id
    AND p.last = (SELECT last FROM part WHERE session = s.id AND floor IS NOT NULL ORDER BY last DESC LIMIT 1);

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

-- Written after a failure, to see whether a message of the largest size can be kept again.
CREATE TABLE probe (
    id     INTEGER PRIMARY KEY CHECK (id = 1),
    filler BLOB NOT NULL
);

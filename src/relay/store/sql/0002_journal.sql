-- What is kept but not yet in the other tables: one row per transaction, its records in the order in which they were
-- kept. They go to their places together, many at a time: a page that takes one row costs as much as one that takes 32.
CREATE TABLE journal (
    id      INTEGER PRIMARY KEY,
    records BLOB    NOT NULL
);

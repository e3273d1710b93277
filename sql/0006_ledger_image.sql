-- What the daemon had folded from the events up to `seq`, so that a start reads only those after it. One row at most; it
-- may be deleted at any time: then a start reads every event. `fold` names the code that folded it, `sha256` is of `state`.
CREATE TABLE ledger_image (
    seq INTEGER NOT NULL PRIMARY KEY,
    fold TEXT NOT NULL,
    sha256 TEXT NOT NULL,
    state BLOB NOT NULL
);

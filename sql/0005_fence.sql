-- Which of two daemons writes: the epoch of the one that last did, and the pairing in which this journal held all that
-- was acknowledged. One row where the site has an active and a passive daemon; none elsewhere.
CREATE TABLE fence (
    id INTEGER NOT NULL PRIMARY KEY,
    epoch INTEGER NOT NULL,
    pairing INTEGER NOT NULL DEFAULT 0
);

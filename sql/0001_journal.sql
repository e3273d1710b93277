-- The journal, and the projections that people read. Runs on SQLite 3.26 (RHEL 8) and newer: no STRICT, no RETURNING.
-- Times are Unix seconds, durations seconds.

-- What happened, in order, never edited. Numbers are never used twice, also after old events were archived.
CREATE TABLE event (
    seq INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT,
    at REAL NOT NULL,
    kind TEXT NOT NULL,
    job INTEGER,
    pilot TEXT,
    node TEXT,
    reason TEXT NOT NULL DEFAULT '',
    data TEXT NOT NULL DEFAULT '{}',
    CONSTRAINT event_data_is_json CHECK (json_valid(data))
);
CREATE INDEX event_by_job ON event (job, seq);
CREATE INDEX event_by_kind ON event (kind, at);

-- Everything below is a projection: it can be dropped and folded again from the journal (except of archived jobs).
CREATE TABLE job (
    id INTEGER NOT NULL PRIMARY KEY,
    name TEXT NOT NULL,
    user TEXT NOT NULL,
    uid INTEGER NOT NULL,
    account TEXT NOT NULL,
    min_nodes INTEGER NOT NULL,
    max_nodes INTEGER NOT NULL,
    sizes TEXT NOT NULL DEFAULT '[]',
    weight REAL NOT NULL DEFAULT 1,
    elastic TEXT NOT NULL DEFAULT 'live',
    total_samples REAL,
    submitted_at REAL NOT NULL,
    phase TEXT NOT NULL,
    reason TEXT NOT NULL DEFAULT '',
    ended_at REAL,
    result TEXT NOT NULL DEFAULT '{}',
    generation INTEGER NOT NULL DEFAULT 0,
    members TEXT NOT NULL DEFAULT '[]',
    world_nodes INTEGER NOT NULL DEFAULT 0,
    rate REAL NOT NULL DEFAULT 0,
    samples REAL NOT NULL DEFAULT 0,
    node_seconds REAL NOT NULL DEFAULT 0,
    preemptions INTEGER NOT NULL DEFAULT 0,
    lost_workers INTEGER NOT NULL DEFAULT 0,
    archived INTEGER NOT NULL DEFAULT 0
);
CREATE INDEX job_by_phase ON job (phase);

-- A pilot as it is now: one task of a held array, used for hole after hole.
CREATE TABLE pilot (
    id TEXT NOT NULL PRIMARY KEY,
    job INTEGER NOT NULL REFERENCES job (id),
    phase TEXT NOT NULL,
    since REAL NOT NULL,
    node TEXT NOT NULL DEFAULT '',
    started_at REAL,
    ends_at REAL,
    reason TEXT NOT NULL DEFAULT ''
);
CREATE INDEX pilot_by_job ON pilot (job, phase);

-- A pilot's stay on a node, from Slurm's start to its end; `id` is the number of the event that began it.
CREATE TABLE stay (
    id INTEGER NOT NULL PRIMARY KEY,
    pilot TEXT NOT NULL,
    job INTEGER NOT NULL REFERENCES job (id),
    node TEXT NOT NULL,
    started_at REAL NOT NULL,
    ends_at REAL,
    ended_at REAL,
    state TEXT NOT NULL DEFAULT '',
    preempted INTEGER NOT NULL DEFAULT 0,
    leave_cause TEXT NOT NULL DEFAULT '',
    reason TEXT NOT NULL DEFAULT ''
);
CREATE INDEX stay_by_pilot ON stay (pilot, ended_at);
CREATE INDEX stay_by_node ON stay (node, started_at);
CREATE INDEX stay_by_job ON stay (job, started_at);
CREATE INDEX stay_open ON stay (started_at) WHERE ended_at IS NULL;

-- The worlds of a job: who trained together. `members` is a JSON list of pilots in rank order.
CREATE TABLE world (
    job INTEGER NOT NULL REFERENCES job (id),
    generation INTEGER NOT NULL,
    at REAL NOT NULL,
    members TEXT NOT NULL,
    reason TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (job, generation)
);

-- Each switch to a generation, with the stall that its workers saw (the longest). From no nodes it is a start.
CREATE TABLE resize (
    job INTEGER NOT NULL REFERENCES job (id),
    generation INTEGER NOT NULL,
    at REAL NOT NULL,
    nodes_before INTEGER NOT NULL,
    nodes INTEGER NOT NULL,
    pause_s REAL NOT NULL,
    step INTEGER,
    reason TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (job, generation)
);

-- The last value of each figure that a training script reported. `value` is JSON: a number, or "nan", "inf".
CREATE TABLE metric (
    job INTEGER NOT NULL REFERENCES job (id),
    name TEXT NOT NULL,
    at REAL NOT NULL,
    value TEXT NOT NULL,
    samples REAL,
    PRIMARY KEY (job, name)
);

-- Node counts, whenever they changed.
CREATE TABLE pool (
    seq INTEGER NOT NULL PRIMARY KEY,
    at REAL NOT NULL,
    idle INTEGER NOT NULL,
    planned INTEGER NOT NULL,
    harvested INTEGER NOT NULL,
    main INTEGER NOT NULL,
    down INTEGER NOT NULL
);
CREATE INDEX pool_by_time ON pool (at);

-- Node-seconds and samples by day (UTC) and job, of stays that are over.
CREATE TABLE usage (
    day TEXT NOT NULL,
    job INTEGER NOT NULL REFERENCES job (id),
    node_seconds REAL NOT NULL DEFAULT 0,
    samples REAL NOT NULL DEFAULT 0,
    stays INTEGER NOT NULL DEFAULT 0,
    preemptions INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (day, job)
);

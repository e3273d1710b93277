PRAGMA foreign_keys=OFF;
BEGIN TRANSACTION;
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
INSERT INTO "event" VALUES(1,1790000000.0,'daemon_started',NULL,NULL,NULL,'','{"version":"0.1.0"}');
INSERT INTO "event" VALUES(2,1790000005.0,'pool',NULL,NULL,NULL,'','{"idle":4,"planned":0,"harvested":0,"main":2,"down":1}');
INSERT INTO "event" VALUES(3,1790000010.0,'job_announced',1,NULL,NULL,'','{"id":1,"name":"train","user":"ada","uid":1001,"account":"harvest","min_nodes":1,"max_nodes":4,"submitted_at":1790000000.0,"sizes":[],"weight":2.0,"elastic":"live","given_curve":null,"total_samples":5000,"profile":null,"key":"","batch_min":null,"batch_max":null,"budget_node_s":null,"deadline":null}');
INSERT INTO "event" VALUES(4,1790000015.0,'array_attached',1,NULL,NULL,'','{"array_id":7,"tasks":3}');
INSERT INTO "event" VALUES(5,1790000020.0,'tasks_added',1,NULL,NULL,'','{"array_id":7,"tasks":[0,1,2]}');
INSERT INTO "event" VALUES(6,1790000025.0,'holes_opened',NULL,NULL,NULL,'','{"nodes":["n001","n002"],"seen_whole":true}');
INSERT INTO "event" VALUES(7,1790000030.0,'decided',NULL,NULL,NULL,'first','{"sizes":{"1":2},"status":"optimal","objective":12.5,"held":{},"horizon_s":0.0}');
INSERT INTO "event" VALUES(8,1790000035.0,'intent',1,'7_0','n001','idle','{"type":"start","job_id":1,"pilot":"7_0","node":"n001","limit_s":600.0,"reason":"idle","replaces":""}');
INSERT INTO "event" VALUES(9,1790000040.0,'outcome',1,'7_0','n001','','{"type":"start","job_id":1,"pilot":"7_0","node":"n001","limit_s":600.0,"reason":"idle","replaces":"","done":true,"detail":""}');
INSERT INTO "event" VALUES(10,1790000045.0,'intent',1,'7_1','n002','idle','{"type":"start","job_id":1,"pilot":"7_1","node":"n002","limit_s":600.0,"reason":"idle","replaces":""}');
INSERT INTO "event" VALUES(11,1790000050.0,'outcome',1,'7_1','n002','','{"type":"start","job_id":1,"pilot":"7_1","node":"n002","limit_s":600.0,"reason":"idle","replaces":"","done":true,"detail":""}');
INSERT INTO "event" VALUES(12,1790000055.0,'pilot_started',1,'7_0','n001','','{"started_at":1790000010.0,"ends_at":1790000610.0}');
INSERT INTO "event" VALUES(13,1790000060.0,'pilot_started',1,'7_1','n002','','{"started_at":1790000011.0,"ends_at":1790000611.0}');
INSERT INTO "event" VALUES(14,1790000065.0,'worker_joined',1,'7_0','n001','','{"worker":"7_0.0"}');
INSERT INTO "event" VALUES(15,1790000070.0,'worker_warm',1,'7_0','n001','','{"worker":"7_0.0","stages":{"import":2.5}}');
INSERT INTO "event" VALUES(16,1790000075.0,'generation',1,NULL,NULL,'first world','{"generation":1,"members":["7_0"],"switched_by":"plan"}');
INSERT INTO "event" VALUES(17,1790000080.0,'switched',1,'7_0','n001','','{"generation":1,"nodes":1,"pause_s":0.0,"step":0,"grew":true}');
INSERT INTO "event" VALUES(18,1790000085.0,'samples',1,'7_0','n001','','{"nodes":1,"samples":300.0,"seconds":3.0,"steps":30,"total":300,"steady":true,"parts":{},"noise_scale":null,"rates":{},"memory_bytes":0}');
INSERT INTO "event" VALUES(19,1790000090.0,'metric',1,'7_0','n001','','{"name":"loss","value":0.5,"samples":300}');
INSERT INTO "event" VALUES(20,1790000095.0,'worker_warm',1,'7_1','n002','','{"worker":"7_1.0","stages":{}}');
INSERT INTO "event" VALUES(21,1790000100.0,'generation',1,NULL,NULL,'7_1 is warm','{"generation":2,"members":["7_0","7_1"],"switched_by":"plan"}');
INSERT INTO "event" VALUES(22,1790000105.0,'switched',1,'7_0','n001','','{"generation":2,"nodes":2,"pause_s":0.2,"step":40,"grew":true}');
INSERT INTO "event" VALUES(23,1790000110.0,'samples',1,'7_0','n001','','{"nodes":2,"samples":580.0,"seconds":3.0,"steps":29,"total":980,"steady":true,"parts":{},"noise_scale":null,"rates":{},"memory_bytes":0}');
INSERT INTO "event" VALUES(24,1790000115.0,'intent',1,'7_1','n002','main job 99 wants it','{"type":"leave","job_id":1,"pilot":"7_1","node":"n002","cause":"yield","deadline":1790000200.0,"reason":"main job 99 wants it"}');
INSERT INTO "event" VALUES(25,1790000120.0,'worker_left',1,'7_1','n002','asked','{"worker":"7_1.0"}');
INSERT INTO "event" VALUES(26,1790000125.0,'generation',1,NULL,NULL,'7_1 leaves','{"generation":3,"members":["7_0"],"switched_by":"plan"}');
INSERT INTO "event" VALUES(27,1790000130.0,'switched',1,'7_0','n001','','{"generation":3,"nodes":1,"pause_s":0.1,"step":70,"grew":false}');
INSERT INTO "event" VALUES(28,1790000135.0,'pilot_held',1,'7_1','n002','','{}');
INSERT INTO "event" VALUES(29,1790000140.0,'holes_ended',NULL,NULL,NULL,'','{"nodes":["n002"],"taken":true}');
INSERT INTO "event" VALUES(30,1790000145.0,'pool',NULL,NULL,NULL,'','{"idle":2,"planned":1,"harvested":1,"main":2,"down":1}');
INSERT INTO "event" VALUES(31,1790000150.0,'job_announced',2,NULL,NULL,'','{"id":2,"name":"other","user":"bob","uid":1002,"account":"harvest","min_nodes":1,"max_nodes":4,"submitted_at":1790000000.0,"sizes":[],"weight":2.0,"elastic":"live","given_curve":null,"total_samples":5000,"profile":null,"key":"","batch_min":null,"batch_max":null,"budget_node_s":null,"deadline":null}');
INSERT INTO "event" VALUES(32,1790000155.0,'job_held',2,NULL,NULL,'held by bob','{"by":"bob"}');
INSERT INTO "event" VALUES(33,1790000160.0,'job_cancelled',2,NULL,NULL,'cancelled by bob','{"by":"bob"}');
INSERT INTO "event" VALUES(34,1790000165.0,'pilot_ended',1,'7_0','n001','','{"state":"preempted","preempted":true,"exit_code":0}');
INSERT INTO "event" VALUES(35,1790000170.0,'worker_lost',1,'7_0','n001','does not poll','{"worker":"7_0.0","how":"silence","fenced":false}');
INSERT INTO "event" VALUES(36,1790000175.0,'operator',NULL,NULL,NULL,'drain by root','{"verb":"drain","by":"root","nodes":["n003"],"until":1790009000.0}');
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
, batch_min INTEGER, batch_max INTEGER, batch INTEGER, noise_scale REAL);
INSERT INTO "job" VALUES(1,'train','ada',1001,'harvest',1,4,'[]',2.0,'live',5000.0,1790000000.0,'queued','',NULL,'{}',3,'[]',0,1.93333333333333342802e+02,980.0,279.0,1,1,0,NULL,NULL,NULL,NULL);
INSERT INTO "job" VALUES(2,'other','bob',1002,'harvest',1,4,'[]',2.0,'live',5000.0,1790000000.0,'cancelled','cancelled by bob',1790000160.0,'{}',0,'[]',0,0.0,0.0,0.0,0,0,0,NULL,NULL,NULL,NULL);
CREATE TABLE ledger_image (
    seq INTEGER NOT NULL PRIMARY KEY,
    fold TEXT NOT NULL,
    sha256 TEXT NOT NULL,
    state BLOB NOT NULL
);
CREATE TABLE metric (
    job INTEGER NOT NULL REFERENCES job (id),
    name TEXT NOT NULL,
    at REAL NOT NULL,
    value TEXT NOT NULL,
    samples REAL,
    PRIMARY KEY (job, name)
);
INSERT INTO "metric" VALUES(1,'loss',1790000090.0,'0.5',300.0);
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
INSERT INTO "pilot" VALUES('7_0',1,'ended',1790000165.0,'',NULL,NULL,'');
INSERT INTO "pilot" VALUES('7_1',1,'held',1790000135.0,'',NULL,NULL,'');
INSERT INTO "pilot" VALUES('7_2',1,'held',1790000020.0,'',NULL,NULL,'');
CREATE TABLE pool (
    seq INTEGER NOT NULL PRIMARY KEY,
    at REAL NOT NULL,
    idle INTEGER NOT NULL,
    planned INTEGER NOT NULL,
    harvested INTEGER NOT NULL,
    main INTEGER NOT NULL,
    down INTEGER NOT NULL
, reserved INTEGER NOT NULL DEFAULT 0);
INSERT INTO "pool" VALUES(2,1790000005.0,4,0,0,2,1,0);
INSERT INTO "pool" VALUES(30,1790000145.0,2,1,1,2,1,0);
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
INSERT INTO "resize" VALUES(1,1,1790000080.0,0,1,0.0,0,'first world');
INSERT INTO "resize" VALUES(1,2,1790000105.0,1,2,0.2,40,'7_1 is warm');
INSERT INTO "resize" VALUES(1,3,1790000130.0,2,1,0.1,70,'7_1 leaves');
CREATE TABLE schema_version (
        version INTEGER NOT NULL PRIMARY KEY,
        name TEXT NOT NULL,
        applied_at TEXT NOT NULL DEFAULT CURRENT_TIMESTAMP
    );
INSERT INTO "schema_version" VALUES(1,'journal','2026-11-25 12:58:48');
INSERT INTO "schema_version" VALUES(2,'batches','2026-11-25 12:58:48');
INSERT INTO "schema_version" VALUES(3,'reserved','2026-11-25 12:58:48');
INSERT INTO "schema_version" VALUES(4,'stays_by_end','2026-11-25 12:58:48');
INSERT INTO "schema_version" VALUES(5,'fence','2026-11-25 12:58:48');
INSERT INTO "schema_version" VALUES(6,'ledger_image','2026-11-27 11:34:56');
INSERT INTO "schema_version" VALUES(7,'one_daemon','2026-11-27 12:23:35');
CREATE TABLE schema_views (
        name TEXT NOT NULL PRIMARY KEY,
        sql TEXT NOT NULL
    );
INSERT INTO "schema_views" VALUES('holes_used','-- How long nodes were held, by node: where the idle time of this cluster lies.
CREATE VIEW holes_used AS
SELECT
    stay.node AS node,
    COUNT(*) AS stays,
    SUM(stay.ended_at - stay.started_at) AS node_seconds,
    AVG(stay.ended_at - stay.started_at) AS mean_s,
    MAX(stay.ended_at - stay.started_at) AS longest_s,
    SUM(stay.preempted) AS preemptions
FROM stay
WHERE stay.ended_at IS NOT NULL
GROUP BY stay.node
ORDER BY node_seconds DESC, stay.node;
');
INSERT INTO "schema_views" VALUES('preemptions','-- Pilots that Slurm preempted: each is a main job that the yield did not foresee.
CREATE VIEW preemptions AS
SELECT
    stay.ended_at AS at,
    datetime(stay.ended_at, ''unixepoch'') AS utc,
    job.user AS user,
    job.account AS account,
    stay.job AS job,
    stay.pilot AS pilot,
    stay.node AS node,
    stay.ended_at - stay.started_at AS held_s,
    stay.reason AS reason
FROM stay
JOIN job ON job.id = stay.job
WHERE stay.preempted = 1
ORDER BY stay.ended_at, stay.id;
');
INSERT INTO "schema_views" VALUES('resizes','-- Every change of a running job''s size, with the stall it cost. A first start (from no nodes) is not a resize.
CREATE VIEW resizes AS
SELECT
    resize.at AS at,
    datetime(resize.at, ''unixepoch'') AS utc,
    job.user AS user,
    job.account AS account,
    resize.job AS job,
    resize.generation AS generation,
    resize.nodes_before AS nodes_before,
    resize.nodes AS nodes,
    resize.pause_s AS pause_s,
    resize.reason AS reason
FROM resize
JOIN job ON job.id = resize.job
WHERE resize.nodes_before > 0
ORDER BY resize.at, resize.job, resize.generation;
');
INSERT INTO "schema_views" VALUES('usage_by_day','-- Who was given how much, by day (UTC): stays that are over.
CREATE VIEW usage_by_day AS
SELECT
    usage.day AS day,
    job.user AS user,
    job.account AS account,
    SUM(usage.node_seconds) AS node_seconds,
    SUM(usage.node_seconds) / 3600.0 AS node_hours,
    SUM(usage.samples) AS samples,
    COUNT(DISTINCT usage.job) AS jobs,
    SUM(usage.stays) AS stays,
    SUM(usage.preemptions) AS preemptions
FROM usage
JOIN job ON job.id = usage.job
GROUP BY usage.day, job.user, job.account
ORDER BY usage.day, job.user, job.account;
');
INSERT INTO "schema_views" VALUES('yields','-- Pilots that left by themselves, because a main job could start on their node.
CREATE VIEW yields AS
SELECT
    stay.ended_at AS at,
    datetime(stay.ended_at, ''unixepoch'') AS utc,
    job.user AS user,
    job.account AS account,
    stay.job AS job,
    stay.pilot AS pilot,
    stay.node AS node,
    stay.ended_at - stay.started_at AS held_s,
    stay.reason AS reason
FROM stay
JOIN job ON job.id = stay.job
WHERE stay.leave_cause = ''yield'' AND stay.ended_at IS NOT NULL
ORDER BY stay.ended_at, stay.id;
');
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
INSERT INTO "stay" VALUES(12,'7_0',1,'n001',1790000010.0,1790000610.0,1790000165.0,'preempted',1,'','');
INSERT INTO "stay" VALUES(13,'7_1',1,'n002',1790000011.0,1790000611.0,1790000135.0,'held',0,'yield','main job 99 wants it');
CREATE TABLE usage (
    day TEXT NOT NULL,
    job INTEGER NOT NULL REFERENCES job (id),
    node_seconds REAL NOT NULL DEFAULT 0,
    samples REAL NOT NULL DEFAULT 0,
    stays INTEGER NOT NULL DEFAULT 0,
    preemptions INTEGER NOT NULL DEFAULT 0,
    PRIMARY KEY (day, job)
);
INSERT INTO "usage" VALUES('2026-09-21',1,279.0,980.0,2,1);
CREATE TABLE world (
    job INTEGER NOT NULL REFERENCES job (id),
    generation INTEGER NOT NULL,
    at REAL NOT NULL,
    members TEXT NOT NULL,
    reason TEXT NOT NULL DEFAULT '',
    PRIMARY KEY (job, generation)
);
INSERT INTO "world" VALUES(1,1,1790000075.0,'["7_0"]','first world');
INSERT INTO "world" VALUES(1,2,1790000100.0,'["7_0", "7_1"]','7_1 is warm');
INSERT INTO "world" VALUES(1,3,1790000125.0,'["7_0"]','7_1 leaves');
CREATE INDEX event_by_job ON event (job, seq);
CREATE INDEX event_by_kind ON event (kind, at);
CREATE INDEX job_by_phase ON job (phase);
CREATE INDEX pilot_by_job ON pilot (job, phase);
CREATE INDEX stay_by_pilot ON stay (pilot, ended_at);
CREATE INDEX stay_by_node ON stay (node, started_at);
CREATE INDEX stay_by_job ON stay (job, started_at);
CREATE INDEX stay_open ON stay (started_at) WHERE ended_at IS NULL;
CREATE INDEX pool_by_time ON pool (at);
CREATE INDEX stay_by_end ON stay (ended_at);
DELETE FROM "sqlite_sequence";
INSERT INTO "sqlite_sequence" VALUES('event',36);
COMMIT;

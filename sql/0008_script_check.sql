-- Whether a job's script trains alike at every size, by `malletrain check`: equal, different, undecided, or '' where it
-- was not checked. A job that is different keeps its size (`fixed_nodes`), unless its owner answers for it (`trusted`).
ALTER TABLE job ADD COLUMN trusted INTEGER NOT NULL DEFAULT 0;
ALTER TABLE job ADD COLUMN check_verdict TEXT NOT NULL DEFAULT '';
ALTER TABLE job ADD COLUMN check_text TEXT NOT NULL DEFAULT '';
ALTER TABLE job ADD COLUMN check_digest TEXT NOT NULL DEFAULT '';
ALTER TABLE job ADD COLUMN fixed_nodes INTEGER;
-- A script is checked once: jobs of its owner with the same digest have the same verdict.
CREATE INDEX job_by_check ON job (uid, check_digest) WHERE check_digest <> '';

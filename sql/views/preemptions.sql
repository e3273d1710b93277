-- Pilots that Slurm preempted: each is a main job that the yield did not foresee.
CREATE VIEW preemptions AS
SELECT
    stay.ended_at AS at,
    datetime(stay.ended_at, 'unixepoch') AS utc,
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

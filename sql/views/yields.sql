-- Pilots that left by themselves, because a main job could start on their node.
CREATE VIEW yields AS
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
WHERE stay.leave_cause = 'yield' AND stay.ended_at IS NOT NULL
ORDER BY stay.ended_at, stay.id;

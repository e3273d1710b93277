-- Every change of a running job's size, with the stall it cost. A first start (from no nodes) is not a resize.
CREATE VIEW resizes AS
SELECT
    resize.at AS at,
    datetime(resize.at, 'unixepoch') AS utc,
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

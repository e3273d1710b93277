-- Who was given how much, by day (UTC): stays that are over.
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

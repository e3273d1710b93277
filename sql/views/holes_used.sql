-- How long nodes were held, by node: where the idle time of this cluster lies.
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

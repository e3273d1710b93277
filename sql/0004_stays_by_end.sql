-- The page draws the stays of the last hours: without this it would read those of all time.
CREATE INDEX stay_by_end ON stay (ended_at);

-- Jobs whose batch the daemon chooses: the range that their owner gave, the batch of late, and the gradient noise
-- scale that they report, in samples.
ALTER TABLE job ADD COLUMN batch_min INTEGER;
ALTER TABLE job ADD COLUMN batch_max INTEGER;
ALTER TABLE job ADD COLUMN batch INTEGER;
ALTER TABLE job ADD COLUMN noise_scale REAL;

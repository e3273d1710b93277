"""Guards that look at the script's data set.

`dataset_digest` is compared between workers at the start, `sample_examination` loads some samples twice before
training begins, and `dataset_attributes` follows what the script sets on its data set while it trains.
"""

"""Guards that look at each operation of a step's forward pass.

`batch_watch` sees them by a mode of torch (`dispatch`), and finds samples that meet; `sample_places` follows where
these lie, by a rule for each operation (`sample_rules`). `forward_numbers` gathers the numbers that the loss is
computed with, and `number_table` compares them between workers. `read_watch` counts numbers that the script reads
from tensors.
"""

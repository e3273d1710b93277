"""Data: which samples a step takes, how they are divided among members, and how they are loaded.

`batch_size` has the rules for the size of the global batch, `sampler` the order of samples and the shares,
`virtual_shards` another division; `prefetch` loads them.

Modules here import from `comm`, `gradients` and `state`, never from `resize` or `session`.
"""

"""The training state: what a newcomer receives and what a checkpoint holds.

`training_state` packs model, optimizer, position and tracked objects into tensors and a skeleton; `transfer` sends
them between members; `checkpoint_store` keeps them on disk; `shared_values` holds plain values of the script.

Modules here import from `comm`, never from `data`, `gradients`, `resize` or `session`.
"""

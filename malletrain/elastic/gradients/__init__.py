"""Gradients and what follows from them.

`reducer` sums gradients while backward runs, as DistributedDataParallel does; `sync_batchnorm` computes BatchNorm
over the whole batch; `noise_scale` measures the gradient noise scale; `learning_rate` follows a changing batch.
"""

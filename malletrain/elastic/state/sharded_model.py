"""Models sharded over the processes of a node (FSDP2's `fully_shard`) and replicated across nodes: hybrid sharding.

Inside the node FSDP works as usual; across nodes the session sums shards. FSDP averages gradients over the node's
processes as if all had the same number of samples, so the gradient at the model's output is scaled by this process's
share of the batch.

FSDP's modules are recognised by name: importing them is slow, and only scripts that use them need them.
"""

from __future__ import annotations

from typing import Any

import torch

from malletrain.elastic.comm.local_rank import LocalRank
from malletrain.elastic.errors import ElasticError


def is_sharded(tensor: object) -> bool:
    """Whether a tensor is a DTensor, of which each process holds a shard."""
    return type(tensor).__name__ == "DTensor"


def local(tensor: Any) -> torch.Tensor:
    """The shard that this process holds, or the tensor itself if it is not sharded; shares its memory."""
    if not is_sharded(tensor):
        whole: torch.Tensor = tensor
        return whole
    with torch.no_grad():
        part: torch.Tensor = tensor.to_local()
    return part


def shard_of(tensor: Any) -> tuple[tuple[int, ...], tuple[int, ...], int]:
    """Global shape, stride, and the sharded dimension (-1 if replicated)."""
    placement = tensor.placements[0]
    return tuple(tensor.shape), tuple(tensor.stride()), placement.dim if placement.is_shard() else -1


def rebuild(part: torch.Tensor, shape: tuple[int, ...], stride: tuple[int, ...], dim: int, mesh: Any) -> Any:
    """The inverse of `local` and `shard_of`."""
    from torch.distributed.tensor import DTensor, Replicate, Shard

    placement = Shard(dim) if dim >= 0 else Replicate()
    return DTensor.from_local(part, mesh, [placement], run_check=False, shape=torch.Size(shape), stride=stride)


def check(model: torch.nn.Module, local_rank: LocalRank) -> bool:
    """Return whether the model is sharded over the processes of this node.

    Raises:
        ElasticError: it is sharded across nodes, or only in part: a node that leaves would take shards with it.
    """
    if any(type(module).__name__ == "FullyShardedDataParallel" for module in model.modules()):
        raise ElasticError(
            "the model is in FullyShardedDataParallel: a node that leaves would take its part. Use fully_shard over "
            "the processes of a node (torch.distributed.fsdp.fully_shard), or the plain model"
        )
    every = list(model.named_parameters())
    sharded = [(name, p) for name, p in every if is_sharded(p)]
    if not sharded:
        return False
    which = f"{sharded[0][0]} and {len(sharded) - 1} more"
    meshes = {p.device_mesh for _, p in sharded}  # type: ignore[attr-defined]
    mesh = next(iter(meshes))
    if len(meshes) > 1 or mesh.ndim != 1 or mesh.size() != local_rank.size:
        raise ElasticError(
            f"the model's parameters are sharded over other processes than the {local_rank.size} of this node "
            f"({which}): a node that leaves would take its part. Shard inside the node: fully_shard over the "
            "processes that `torchrun --standalone` starts there; the session keeps the nodes alike"
        )
    whole = next((name for name, p in every if not is_sharded(p) and p.requires_grad), None)
    if whole is not None:
        raise ElasticError(f"{whole} is not sharded, but others are: call fully_shard on the whole model last")
    return True


class OutputScale:
    """Scales the gradient at the model's output by a factor that is set for each step. `mean`: the script's loss is
    a mean over samples (else a sum)."""

    def __init__(self, model: torch.nn.Module, local_rank: LocalRank, *, mean: bool) -> None:
        self.factor: float | None = None
        self._local_rank = local_rank
        self._mean = mean
        model.register_forward_hook(self._hook)

    def begin(self, weight: float, batch: int) -> None:
        """Begin a step in which this process has `weight` of `batch` samples. Undoes FSDP's division by the number of
        processes."""
        self.factor = self._local_rank.size * (weight / batch if self._mean else float(weight > 0))

    def end(self) -> None:
        """End the step, whether it was committed or not."""
        self.factor = None

    def _hook(self, module: torch.nn.Module, inputs: Any, output: Any) -> Any:
        if self.factor is None or not torch.is_grad_enabled():
            return output
        from torch.utils._pytree import tree_map_only

        return tree_map_only(torch.Tensor, self._watched, output)

    def _watched(self, tensor: torch.Tensor) -> torch.Tensor:
        """A view of an output: what the model itself does with the tensor is not scaled again."""
        if not tensor.requires_grad:
            return tensor
        view = tensor.view_as(tensor)
        view.register_hook(lambda gradient: None if self.factor is None else gradient * self.factor)
        return view

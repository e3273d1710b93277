"""In which sense a resized run equals a static one: four classes, and how a model is assigned to one."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import torch
from torch import nn

from malletrain.elastic.gradients.sync_batchnorm import SyncBatchNorm


class Equality(StrEnum):
    """The classes, from strong to weak."""

    ADDITIVE = "additive"  #: the loss is a sum over samples: equal up to rounding
    VIRTUAL_SHARDS = "virtual shards"  #: equal up to rounding to a static run with the same shards
    SYNC_BATCHNORM = "sync batchnorm"  #: equal up to rounding, statistics over the whole batch
    STATISTICAL = "statistical"  #: like a static run, not equal to it by numbers


@dataclass(frozen=True, slots=True)
class Judgement:
    """The class of a session.

    Attributes:
        equality: the class.
        because: why it is no stronger one.
        remedy: what would make it stronger, or "".
    """

    equality: Equality
    because: tuple[str, ...] = ()
    remedy: str = ""

    def __str__(self) -> str:
        if self.equality is not Equality.STATISTICAL:
            return f"{self.equality.value}: {_MEANING[self.equality]}"
        return f"statistical: {_MEANING[self.equality]}, because {'; '.join(self.because)}. {self.remedy}".rstrip()


_MEANING = {
    Equality.ADDITIVE: "equal to a static run up to rounding, as far as the loss adds up over samples",
    Equality.VIRTUAL_SHARDS: "equal up to rounding to a static run with the same number of shards",
    Equality.SYNC_BATCHNORM: "equal to a static run up to rounding: BatchNorm sees the whole batch at every size",
    Equality.STATISTICAL: "like a static run, not equal to it",
}


def judge(
    model: nn.Module,
    *,
    shards: bool,
    fixed_batch: bool,
    additive: bool,
    rounded: bool = False,
) -> Judgement:
    """Assign a session to its class.

    Args:
        model: to train.
        shards: whether the session has virtual shards.
        fixed_batch: whether the batch is the same at every size.
        additive: whether the loss is a sum or mean over samples, as the script declares.
        rounded: whether gradients are rounded to bfloat16 before they are summed over workers.
    """
    because = []
    batch = [] if shards else whole_batch_layers(model)
    drawing = [] if shards else random_layers(model)
    remedies = []
    if batch:
        because.append(f"{_some(batch)} look at the part of the batch that a worker has")
        remedies.append("GroupNorm or LayerNorm, sync_batchnorm(model), or virtual_shards=N")
    if drawing:
        because.append(f"{_some(drawing)} draw random numbers by worker")
        remedies.append("virtual_shards=N")
    if not additive and not shards:
        because.append("the loss compares samples of a batch with each other (Options(additive_loss=False))")
        remedies.append("virtual_shards=N")
    if not fixed_batch:
        because.append("the batch changes with the number of workers")
        remedies.append("a batch_size that is a number")
    if rounded:
        because.append("gradients are rounded before they are summed over workers (sum_dtype)")
        remedies.append("no sum_dtype")
    if because:
        remedy = f"Where equality matters: {'; '.join(dict.fromkeys(remedies))}."
        return Judgement(Equality.STATISTICAL, tuple(because), remedy)
    if shards:
        return Judgement(Equality.VIRTUAL_SHARDS)
    synced = any(isinstance(module, SyncBatchNorm) for module in model.modules())
    return Judgement(Equality.SYNC_BATCHNORM if synced else Equality.ADDITIVE)


def whole_batch_layers(model: nn.Module) -> list[str]:
    """Layers whose output or running statistics for a sample depend on the other samples of the local batch."""
    return [
        f"{name or 'the model'} ({type(module).__name__})"
        for name, module in model.named_modules()
        if (isinstance(module, nn.modules.batchnorm._BatchNorm) and not isinstance(module, SyncBatchNorm))
        or (isinstance(module, nn.modules.instancenorm._InstanceNorm) and module.track_running_stats)
        or _observes(module)
    ]


def _observes(module: nn.Module) -> bool:
    """Whether a module follows the range of its inputs, as quantisation's observers."""
    return type(module).__module__.startswith("torch.ao.quantization") and hasattr(module, "calculate_qparams")


def random_layers(model: nn.Module) -> list[str]:
    """Layers that draw random numbers in training. Random numbers drawn in a `forward` itself are not found."""
    return [
        f"{name or 'the model'} ({type(module).__name__})" for name, module in model.named_modules() if _draws(module)
    ]


def _draws(module: nn.Module) -> bool:
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return module.p > 0
    if isinstance(module, nn.RReLU):
        return True
    # Attention and recurrent layers have dropout as an attribute, not as a submodule.
    dropout = getattr(module, "dropout", 0.0)
    return isinstance(dropout, float) and dropout > 0 and isinstance(module, nn.MultiheadAttention | nn.RNNBase)


def _some(names: list[str]) -> str:
    return ", ".join(names[:3]) + (f" and {len(names) - 3} more" if len(names) > 3 else "")


def synced_layers(model: torch.nn.Module) -> list[SyncBatchNorm]:
    """The `SyncBatchNorm` layers of a model, in order."""
    return [module for module in model.modules() if isinstance(module, SyncBatchNorm)]

"""In which sense a resized run equals a static one: four classes, and how a model is assigned to one."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum

from torch import nn

from malletrain.elastic.gradients.sync_batchnorm import SyncBatchNorm


class Equality(StrEnum):
    """The classes, from strong to weak."""

    ADDITIVE = "additive"
    VIRTUAL_SHARDS = "virtual shards"
    SYNC_BATCHNORM = "sync batchnorm"
    STATISTICAL = "statistical"


_MEANING = {
    Equality.ADDITIVE: "equal to a static run up to rounding, as far as the loss adds up over samples",
    Equality.VIRTUAL_SHARDS: "equal up to rounding to a static run with the same number of shards",
    Equality.SYNC_BATCHNORM: "equal to a static run up to rounding: BatchNorm sees the whole batch at every size",
    Equality.STATISTICAL: "like a static run, not equal to it",
}


@dataclass(frozen=True, slots=True)
class Judgement:
    """The class of a session; with each reason why it is no stronger one, what would make it stronger."""

    equality: Equality
    because: tuple[tuple[str, str], ...] = ()

    def __str__(self) -> str:
        said = f"{self.equality.value}: {_MEANING[self.equality]}"
        if not self.because:
            return said
        remedies = dict.fromkeys(remedy for _, remedy in self.because)
        return (
            f"{said}, because {'; '.join(why for why, _ in self.because)}. "
            f"Where equality matters: {'; '.join(remedies)}."
        )


def judge(model: nn.Module, *, shards: bool, fixed_batch: bool, additive: bool) -> Judgement:
    """Assign a session to its class: by whether it has virtual shards, one batch at every size, and (as the script
    declares) a loss that is a sum or mean over samples."""
    mixing, drawing = ("", "") if shards else (_layers(model, _mixes_samples), _layers(model, _draws))
    apart = not additive and not shards
    compared = "the loss compares samples of a batch with each other (Options(additive_loss=False))"
    other_norm = "GroupNorm or LayerNorm, sync_batchnorm(model), or virtual_shards=N"
    reasons = [
        (mixing, f"{mixing} look at the part of the batch that a worker has", other_norm),
        (drawing, f"{drawing} draw random numbers by worker", "virtual_shards=N"),
        (apart, compared, "virtual_shards=N"),
        (not fixed_batch, "the batch changes with the number of workers", "a batch_size that is a number"),
    ]
    if because := tuple((why, remedy) for holds, why, remedy in reasons if holds):
        return Judgement(Equality.STATISTICAL, because)
    if shards:
        return Judgement(Equality.VIRTUAL_SHARDS)
    return Judgement(Equality.SYNC_BATCHNORM if synced_layers(model) else Equality.ADDITIVE)


def synced_layers(model: nn.Module) -> list[SyncBatchNorm]:
    """The `SyncBatchNorm` layers of a model, in order."""
    return [module for module in model.modules() if isinstance(module, SyncBatchNorm)]


def _layers(model: nn.Module, which: Callable[[nn.Module], bool]) -> str:
    """The first of such layers, by name, and how many there are more; "" without any."""
    found = [
        f"{name or 'the model'} ({type(module).__name__})" for name, module in model.named_modules() if which(module)
    ]
    return ", ".join(found[:3]) + (f" and {len(found) - 3} more" if len(found) > 3 else "")


def _mixes_samples(module: nn.Module) -> bool:
    """Whether a layer's output or running statistics for a sample depend on the others of the local batch."""
    if isinstance(module, nn.modules.instancenorm._InstanceNorm):
        return module.track_running_stats
    if isinstance(module, nn.modules.batchnorm._BatchNorm):
        return not isinstance(module, SyncBatchNorm)
    # Quantisation's observers follow the range of their inputs.
    return type(module).__module__.startswith("torch.ao.quantization") and hasattr(module, "calculate_qparams")


def _draws(module: nn.Module) -> bool:
    """Whether a layer draws random numbers in training. (Those drawn in a `forward` itself are not found.)"""
    if isinstance(module, nn.modules.dropout._DropoutNd):
        return module.p > 0
    if isinstance(module, nn.RReLU):
        return True
    # Attention and recurrent layers have dropout as an attribute, not as a submodule.
    dropout = getattr(module, "dropout", 0.0)
    return isinstance(dropout, float) and dropout > 0 and isinstance(module, nn.MultiheadAttention | nn.RNNBase)

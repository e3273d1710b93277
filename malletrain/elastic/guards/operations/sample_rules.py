"""Where the result of an operation has a worker's samples, by where its tensors have them: one rule an operation."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch


@dataclass(frozen=True, slots=True)
class Place:
    """Where a tensor has samples.

    Attributes:
        ids: which samples, in their order: places of the batch.
        dim: the dimension along which they lie; None in a tensor of one sample.
        outer: how many blocks of all samples the dimension has, where a view has merged several dimensions.
        inner: how many neighbours in it are of one sample.
        group: how many samples lie along the dimension after it, where a view has put them into groups (else 0).
    """

    ids: tuple[int, ...]
    dim: int | None = 0
    outer: int = 1
    inner: int = 1
    group: int = 0

    @property
    def is_plain(self) -> bool:
        """Whether each sample is one row."""
        return self.outer == self.inner == 1 and not self.group

    def is_like(self, other: Place) -> bool:
        """Whether the same samples lie at the same places."""
        return self == other or (self.dim == other.dim and self._expanded() == other._expanded())

    def _expanded(self) -> tuple[int, ...]:
        return tuple(each for each in self.ids for _ in range(self.inner)) * self.outer


class Meet(Exception):
    """Samples meet in an operation."""

    def __init__(self, *, sums: bool = False) -> None:
        super().__init__()
        self.sums = sums


Known = list[tuple[torch.Tensor, Place]]  #: the tensors that an operation was given, with their places
Rule = Callable[["Call"], "Place | list[Place | None] | None"]


@dataclass(frozen=True, slots=True)
class Call:
    """One operation, and where its tensors have samples."""

    args: Sequence[Any]
    outs: list[torch.Tensor]
    known: Known
    samples: int
    place_of: Callable[[Any], Place | None]

    @property
    def first(self) -> Place | None:
        """Of the first argument."""
        return self.place_of(self.args[0])

    @property
    def ndim(self) -> int:
        """Dimensions of the first argument."""
        return int(self.args[0].ndim)

    def argument(self, place: int, default: Any) -> Any:
        return self.args[place] if len(self.args) > place else default


def _placed(ids: Sequence[int], dim: int) -> Place:
    ids = tuple(ids)
    return Place(ids, dim if len(ids) > 1 else None)


def _each_alone(call: Call) -> Place | None:
    """Element by element, aligned from the last dimension."""
    if all(tensor.numel() == 1 for tensor, _ in call.known):
        return None  # parts of a loss
    found: Place | None = None
    for tensor, place in call.known:
        here = place
        if place.dim is not None:
            here = replace(place, dim=place.dim + call.outs[0].ndim - tensor.ndim)
        if found is not None and not found.is_like(here):
            raise Meet
        found = found or here
    return found


def _rows_stay(call: Call) -> Place | None:
    """An operation of no known rule, which leaves a sample in each row, if it has as many."""
    places = {place for _, place in call.known}
    place = places.pop()
    return place if not places and place.dim == 0 and place.is_plain else None


def _compared(call: Call) -> Place | None:
    """A loss of an input and its target."""
    place = call.known[0][1]
    if not all(other.is_like(replace(place, dim=other.dim)) for _, other in call.known):
        raise Meet
    return place if place.dim == 0 and place.is_plain else None


def _viewed(call: Call) -> Place | None:
    place, shape = call.first, list(call.args[0].shape)
    if place is None or place.dim is None:
        return place
    before = math.prod(shape[: place.dim]) * place.outer
    sizes = list(call.outs[0].shape)
    for dim, size in enumerate(sizes):
        blocks = math.prod(sizes[:dim])
        if before % blocks == 0:
            outer = before // blocks
            if size and size % (outer * len(place.ids)) == 0:
                return Place(place.ids, dim, outer, size // (outer * len(place.ids)))
            if outer == 1 and 1 < size < len(place.ids) == math.prod(sizes[dim : dim + 2]):
                return Place(place.ids, dim, group=sizes[dim + 1])
    return None


def _transposed(call: Call) -> Place | None:
    place = call.first
    if place is None or place.dim is None:
        return place
    ndim = call.ndim
    one, other = call.argument(1, 0) % ndim, call.argument(2, 1) % ndim
    return replace(place, dim={one: other, other: one}.get(place.dim, place.dim))


def _permuted(call: Call) -> Place | None:
    place = call.first
    if place is None or place.dim is None:
        return place
    return replace(place, dim=[each % call.ndim for each in call.args[1]].index(place.dim))


def _chosen(call: Call) -> Place | None:
    """`select`: one index of a dimension."""
    place, dim, index = call.first, call.args[1] % call.ndim, call.args[2]
    if place is None or place.dim is None:
        return place
    if place.group and dim in (place.dim, place.dim + 1):
        ids = place.ids[index :: place.group] if dim > place.dim else _groups(place)[index]
        return Place(tuple(ids), place.dim)
    if dim == place.dim:
        return Place((place.ids[index],), None) if place.is_plain else None
    return replace(place, dim=place.dim - (dim < place.dim))


def _cut(call: Call) -> Place | None:
    """`slice`."""
    place, dim = call.first, call.argument(1, 0) % call.ndim
    if place is None or place.dim != dim:
        return place
    start, end, step = call.argument(2, None), call.argument(3, None), call.argument(4, 1)
    if call.outs[0].shape[dim] == call.args[0].shape[dim]:
        return place
    return _placed(place.ids[start:end:step], dim) if place.is_plain else None


def _unbound(call: Call) -> list[Place | None]:
    place, dim = call.first, call.argument(1, 0) % call.ndim
    if place is None or place.dim is None:
        return [place] * len(call.outs)
    if place.group and dim == place.dim:
        return [Place(ids, dim) for ids in _groups(place)]
    if place.group and dim == place.dim + 1:
        return [Place(place.ids[number :: place.group], place.dim) for number in range(place.group)]
    if dim == place.dim:
        return [Place((each,), None) for each in place.ids] if place.is_plain else []
    return [replace(place, dim=place.dim - (dim < place.dim))] * len(call.outs)


def _groups(place: Place) -> list[tuple[int, ...]]:
    return [place.ids[begin : begin + place.group] for begin in range(0, len(place.ids), place.group)]


def _split(call: Call) -> list[Place | None]:
    place, dim = call.first, call.argument(2, 0) % call.ndim
    if place is None or place.dim != dim:
        return [place] * len(call.outs)
    found: list[Place | None] = []
    begin = 0
    for out in call.outs:
        found.append(_placed(place.ids[begin : begin + out.shape[dim]], dim) if place.is_plain else None)
        begin += out.shape[dim]
    return found


def _joined(call: Call) -> Place | None:
    """`cat`."""
    tensors, dim = call.args[0], call.argument(1, 0) % call.outs[0].ndim
    places = [call.place_of(each) for each in tensors]
    if any(place is not None and place.dim == dim for place in places) or _are_single(places):
        known = [place for place in places if place is not None]
        if len(known) < len(places) or any(not each.is_plain or each.dim not in (dim, None) for each in known):
            return None
        inner = {each.shape[dim] for each, place in zip(tensors, known, strict=True) if place.dim is None}
        if inner and (len(inner) > 1 or (inner != {1} and not _are_single(known))):
            return None
        ids = [each for place in known for each in place.ids]
        return Place(tuple(ids), dim, inner=inner.pop() if inner else 1)
    return _each_alone(call)


def _are_single(places: Sequence[Place | None]) -> bool:
    """Whether these are of single samples, and not of the same one."""
    return all(place is not None and place.dim is None for place in places) and len(set(places)) > 1


def _stacked(call: Call) -> Place | None:
    tensors, dim = call.args[0], call.argument(1, 0) % call.outs[0].ndim
    places = [call.place_of(each) for each in tensors]
    if _are_single(places):
        return Place(tuple(each for place in places if place is not None for each in place.ids), dim)
    known = {place for place in places if place is not None}
    if len(known) > 1:
        raise Meet
    place = known.pop()
    return place if place.dim is None else replace(place, dim=place.dim + (dim <= place.dim))


def _indexed(call: Call) -> Place | None:
    """By tensors, of which None leaves a dimension as it is."""
    indices, place = [*call.args[1]], call.first
    given = [(dim, each) for dim, each in enumerate(indices) if each is not None]
    if any(each.dtype in (torch.bool, torch.uint8) and each.ndim != 1 for _, each in given):
        return None
    widest = max(each.ndim for _, each in given)
    begin = given[0][0]
    if [dim for dim, _ in given] != list(range(begin, begin + len(given))):
        return None  # its dimensions would come first
    found = []
    for dim, each in given:
        where = call.place_of(each)
        if where is not None and where.dim is not None and each.dtype not in (torch.bool, torch.uint8):
            found.append(replace(where, dim=begin + where.dim + widest - each.ndim))
        if place is not None and dim == place.dim:
            if not place.is_plain:
                return None
            values = _index_values(each)
            if each.ndim == 1:
                found.append(Place(tuple(place.ids[value] for value in values), begin + widest - 1))
            elif where is not None and where.dim == 0:
                if any(place.ids[value] != where.ids[row] for row, value in _rows(values, each.shape[0])):
                    raise Meet
            else:
                return None
    if place is not None and place.dim is not None and place.dim not in [dim for dim, _ in given]:
        after = place.dim > begin
        found.append(replace(place, dim=place.dim + (widest - len(given) if after else 0)))
    if len(set(found)) > 1:
        raise Meet
    return found[0] if found else None


def _index_values(index: torch.Tensor) -> list[int]:
    if index.dtype in (torch.bool, torch.uint8):
        return [place for place, counts in enumerate(index.tolist()) if counts]
    values: list[int] = index.reshape(-1).tolist()
    return values


def _rows(values: list[int], rows: int) -> list[tuple[int, int]]:
    """The row of each value of a tensor, and the value."""
    wide = len(values) // rows
    return [(number // wide, value) for number, value in enumerate(values)]


def _index_selected(call: Call) -> Place | None:
    dim = call.args[1] % call.ndim
    return _indexed(replace(call, args=(call.args[0], [None] * dim + [call.args[2]])))


def _put(call: Call) -> Place | None:
    """`index_put`: into chosen rows, or added to them."""
    place, indices, values = call.first, call.args[1], call.args[2]
    source = call.place_of(values)
    if place is None:
        if call.argument(3, False) and any(call.place_of(each) is not None for each in indices):
            raise Meet(sums=True)
        return None
    if source is not None and len(indices) == 1 and place.dim == 0 and place.is_plain and indices[0].ndim == 1:
        ids = tuple(place.ids[value] for value in _index_values(indices[0]))
        if len(source.ids) == len(ids) and source.ids != ids:
            raise Meet
    return place


def _added_by_index(call: Call) -> Place | None:
    """`index_add`: rows are put back to where they were taken from, or summed."""
    dim = call.args[1] % call.ndim
    source, index = call.place_of(call.args[3]), call.args[2]
    if source is None or source.dim != dim:
        if source is None and call.place_of(index) is not None:
            raise Meet(sums=True)
        return None
    own = call.first
    if tuple(index.tolist()) == source.ids and call.args[0].shape[dim] == call.samples:
        return own or Place(tuple(range(call.samples)), dim)
    raise Meet(sums=True)


def _scattered(call: Call) -> Place | None:
    dim, place = call.args[1] % call.ndim, call.place_of(call.args[2])
    if place is None or place.dim is None:
        return None
    return place if place.dim != dim else None


def _added_by_scatter(call: Call) -> Place | None:
    dim, place = call.args[1] % call.ndim, call.place_of(call.args[2])
    if place is not None and place.dim == dim:
        raise Meet(sums=True)
    return _scattered(call)


def _gathered(call: Call) -> Place | None:
    dim, place = call.args[1] % call.ndim, call.first
    if any(where.dim == dim for _, where in call.known):
        return None
    return _each_alone(call) if place is not None else call.place_of(call.args[2])


def _flipped(call: Call) -> Place | None:
    place = call.first
    if place is None or place.dim not in [each % call.ndim for each in call.args[1]]:
        return place
    return replace(place, ids=place.ids[::-1]) if place.is_plain else None


def _rolled(call: Call) -> Place | None:
    place, dims = call.first, [each % call.ndim for each in call.argument(2, [])]
    if place is None or place.dim not in dims:
        return place if dims else None
    shift = call.args[1][dims.index(place.dim)] % len(place.ids)
    return replace(place, ids=place.ids[-shift:] + place.ids[:-shift]) if place.is_plain else None


def _multiplied(one: Any, other: Any, call: Call) -> Place | None:
    """A product of matrices, or of as many in the first dimension."""
    mine, theirs = call.place_of(one), call.place_of(other)
    last, inner = one.ndim - 1, max(0, other.ndim - 2)
    if (mine is not None and mine.dim == last) or (theirs is not None and theirs.dim == inner):
        if call.outs[0].numel() == 1:
            return None
        raise Meet(sums=True)
    if mine is not None and theirs is not None and mine != theirs:
        raise Meet
    if theirs is not None and theirs.dim == other.ndim - 1 and other.ndim > 1:
        return replace(theirs, dim=call.outs[0].ndim - 1)
    return mine if mine is not None else theirs


def _convolved(call: Call) -> Place | None:
    place = call.first
    if place is None or call.place_of(call.args[1]) is not None:
        return None
    if place.dim == 0:
        return place
    raise Meet


def _normalised(call: Call) -> list[Place | None]:
    """`native_layer_norm`."""
    place = call.first
    if place is not None and place.dim is not None and place.dim >= call.ndim - len(call.args[1]):
        raise Meet(sums=True)
    return [place]


def _attention(call: Call) -> list[Place | None]:
    places = {place for _, place in call.known}
    if len(places) > 1:
        raise Meet
    place = places.pop()
    if place.dim is not None and place.dim >= call.ndim - 2:
        raise Meet
    return [place]


def _distances(call: Call) -> Place | None:
    return _multiplied(call.args[0], call.args[1].transpose(-1, -2), _with_transposed(call))


def _with_transposed(call: Call) -> Call:
    """The call, in which the second argument's samples lie as in its transposed."""
    other = call.args[1]

    def place_of(thing: Any) -> Place | None:
        if thing is call.args[0]:
            return call.place_of(thing)
        place = call.place_of(other)
        if place is None or place.dim is None or place.dim < other.ndim - 2:
            return place
        return replace(place, dim=2 * other.ndim - 3 - place.dim)

    return replace(call, place_of=place_of)


def _recurrent(call: Call) -> list[Place | None]:
    """`mkldnn_rnn_layer`: time first."""
    place = call.first
    if place is not None and place.dim == 0:
        raise Meet
    return [place]


def _reduced(call: Call) -> Place | None:
    """Over dimensions other than that of samples, or over these (which is judged by `BatchWatch`)."""
    place = call.first
    if place is None or place.dim is None:
        return place
    given = call.argument(1, None)
    dims = [given] if isinstance(given, int) else given if isinstance(given, list | tuple) else []
    dims = [each % call.ndim for each in dims] or list(range(call.ndim))
    if place.group and (place.dim in dims) != (place.dim + 1 in dims):
        raise Meet(sums=True)
    if place.dim in dims:
        return None
    kept = call.outs[0].ndim == call.ndim
    return place if kept else replace(place, dim=place.dim - sum(each < place.dim for each in dims))


def _along(place: int, default: int) -> Rule:
    """Along a dimension, by the place of that argument: what lies along another stays."""

    def rule(call: Call) -> Place | None:
        where, dim = call.first, call.argument(place, default) % call.ndim
        return where if where is not None and where.dim != dim else None

    return rule


def _accumulated(call: Call) -> Place | None:
    """Running sums, products and extremes: each row is made with those before it."""
    place = call.first
    if place is not None and place.dim == call.argument(1, -1) % call.ndim:
        raise Meet(sums=True)
    return place


def _in_windows(call: Call) -> Place | None:
    """`unfold`: neighbours along a dimension."""
    place = call.first
    if place is not None and place.dim == call.args[1] % call.ndim:
        raise Meet
    return place


def _over_places(count: int) -> Rule:
    """Pooling, resizing and padding: neighbours along so many last dimensions."""

    def rule(call: Call) -> list[Place | None]:
        place = call.first
        if place is not None and place.dim is not None and place.dim >= call.ndim - count:
            raise Meet
        return [place] * len(call.outs)

    return rule


def _pairs(call: Call) -> Place | None:
    """`pdist`: all pairs of rows."""
    if call.first is not None and call.first.dim == 0:
        raise Meet
    return None


def _batch_normalised(call: Call) -> list[Place | None]:
    """By statistics of each channel (dimension 1), or by known ones. An instance norm has samples among channels."""
    place = call.first
    training = next((each for each in call.args if isinstance(each, bool)), True)
    if training and place is not None and place.dim not in (1, None):
        raise Meet(sums=True)
    return [place]


def _transformed(call: Call) -> list[Place | None]:
    """A Fourier transform along some dimensions."""
    place = call.first
    if place is not None and place.dim in [each % call.ndim for each in call.args[1]]:
        raise Meet
    return [place]


def _decomposed(call: Call) -> list[Place | None]:
    """Of matrices, which lie in the last two dimensions."""
    place = call.first
    if place is not None and place.dim is not None and place.dim >= call.ndim - 2:
        raise Meet
    return [place] * len(call.outs)


def _vector_norm(call: Call) -> Place | None:
    return _reduced(replace(call, args=(call.args[0], call.argument(2, None))))


def _padded(call: Call) -> Place | None:
    place, pad = call.first, call.args[1]
    if place is None or place.dim is None:
        return place
    at = 2 * (call.ndim - 1 - place.dim)
    return place if not any(pad[at : at + 2]) else None


def _repeated(call: Call) -> Place | None:
    place, counts = call.first, call.args[1]
    if place is None or place.dim is None:
        return place
    dim = place.dim + len(counts) - call.ndim
    if counts[dim] == 1:
        return replace(place, dim=dim)
    return replace(place, ids=place.ids * counts[dim], dim=dim) if place.is_plain else None


#: Rules by how an operation's name begins.
_FAMILIES: tuple[tuple[str, Rule], ...] = (
    ("_scaled_dot_product", _attention),
    ("_fft_", _transformed),
    ("linalg_", _decomposed),
    ("_linalg_", _decomposed),
    ("cholesky", _decomposed),
    ("native_batch_norm", _batch_normalised),
    ("_native_batch_norm", _batch_normalised),
    ("_batch_norm", _batch_normalised),
    ("cudnn_batch_norm", _batch_normalised),
    ("miopen_batch_norm", _batch_normalised),
)

#: How the names of operations on neighbouring places of an image or a sequence begin; the digit tells over how many
#: dimensions.
_OVER_PLACES = re.compile(
    r"(avg_pool|max_pool|fractional_max_pool|_?adaptive_|_?upsample_|reflection_pad|replication_pad)\w*([123])d"
)

#: Rules that know of groups of samples.
RULES_OF_GROUPS: frozenset[Rule] = frozenset({_each_alone, _viewed, _chosen, _unbound, _reduced})

#: Operations in which tensors of single samples become one of several.
JOINS = frozenset({"cat", "stack"})

#: Element by element, though torch does not say so.
_SAME = frozenset(
    {"detach", "_to_copy", "clone", "alias", "lift_fresh", "copy", "masked_fill", "expand", "where", "native_dropout",
     "bernoulli", "_conj", "fill"}
)  # fmt: skip

_RULES: dict[str, Rule] = {
    **dict.fromkeys(("view", "_unsafe_view", "reshape", "_reshape_alias", "unsqueeze", "squeeze"), _viewed),
    "t": lambda call: _transposed(replace(call, args=(call.args[0], 0, call.ndim - 1))),
    "transpose": _transposed,
    "permute": _permuted,
    "select": _chosen,
    "slice": _cut,
    "unbind": _unbound,
    **dict.fromkeys(("split", "split_with_sizes", "unsafe_split", "unsafe_split_with_sizes"), _split),
    "cat": _joined,
    "stack": _stacked,
    "index": _indexed,
    "index_select": _index_selected,
    "index_put": _put,
    "index_add": _added_by_index,
    "scatter": _scattered,
    **dict.fromkeys(("scatter_add", "scatter_reduce"), _added_by_scatter),
    "gather": _gathered,
    "embedding": lambda call: call.place_of(call.args[1]),
    "flip": _flipped,
    "roll": _rolled,
    **dict.fromkeys(("mm", "bmm"), lambda call: _multiplied(call.args[0], call.args[1], call)),
    "mv": lambda call: _multiplied(call.args[0], call.args[1], call),
    **dict.fromkeys(("addmm", "baddbmm"), lambda call: _multiplied(call.args[1], call.args[2], call)),
    **dict.fromkeys(("_cdist_forward", "_euclidean_dist"), _distances),
    "convolution": _convolved,
    "native_layer_norm": _normalised,
    "mkldnn_rnn_layer": _recurrent,
    **dict.fromkeys(
        ("mean", "sum", "var", "std", "var_mean", "std_mean", "amax", "amin", "max", "min", "median", "logsumexp",
         "prod", "any", "all", "argmax", "argmin", "count_nonzero"),
        _reduced,
    ),
    "linalg_vector_norm": _vector_norm,
    **dict.fromkeys(("_softmax", "_log_softmax"), _along(1, -1)),
    **dict.fromkeys(("cumsum", "cumprod", "logcumsumexp", "cummax", "cummin"), _accumulated),
    "unfold": _in_windows,
    "_pdist_forward": _pairs,
    "sort": _along(1, -1),
    "topk": _along(2, -1),
    "constant_pad_nd": _padded,
    "repeat": _repeated,
    **dict.fromkeys(
        ("nll_loss_forward", "nll_loss2d_forward", "mse_loss", "smooth_l1_loss", "huber_loss",
         "binary_cross_entropy", "binary_cross_entropy_with_logits"),
        _compared,
    ),
}  # fmt: skip


def rule_of(name: str, func: Any) -> Rule:
    """The rule for an operation of this name."""
    rule = _RULES.get(name) or next((each for begin, each in _FAMILIES if name.startswith(begin)), None)
    if rule is not None:
        return rule
    places = _OVER_PLACES.match(name)
    if places is not None:
        return _over_places(int(places[2]))
    return _each_alone if torch.Tag.pointwise in func.tags or name in _SAME else _rows_stay

"""The groups of the corpus, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from tests.corpus import decisions, membership, replay, site, sizing, slurm, store, wire
from tests.corpus.cases import Case

GROUPS: Mapping[str, Callable[[], Iterable[Case]]] = {
    "sizing": sizing.cases,
    "decisions": decisions.cases,
    "membership": membership.cases,
    "slurm": slurm.cases,
    "site": site.cases,
    "replay": replay.cases,
    "wire": wire.cases,
    "store": store.cases,
}

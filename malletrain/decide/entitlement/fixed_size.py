"""The size of a job whose script does not train alike at every size: one, or none. Pure."""

from __future__ import annotations

from dataclasses import replace
from typing import Protocol

from malletrain.domain.job import Elastic, MalleableJob, ScriptCheck, ScriptVerdict


class SizeTerms(Protocol):
    """The sizes that a job may have."""

    @property
    def min_nodes(self) -> int: ...

    @property
    def sizes(self) -> tuple[int, ...]: ...

    def permits(self, nodes: int) -> bool: ...


def keeps_its_size(job: MalleableJob, check: ScriptCheck | None) -> bool:
    """Whether no worker of the job may join or leave while it trains: `malletrain check` has found that the script
    trains otherwise then, and its owner did not submit it with `--trust`."""
    resizes = job.elastic is Elastic.LIVE and not job.trusted
    return resizes and check is not None and check.verdict is ScriptVerdict.DIFFERENT


def terms_of(job: MalleableJob, check: ScriptCheck | None) -> MalleableJob:
    """The job as it may be given nodes: as its owner asked for it, or as many as it keeps."""
    if check is None or not keeps_its_size(job, check):
        return job
    size = size_kept(job, check.nodes)
    return replace(job, min_nodes=size, max_nodes=size, sizes=())


def size_kept(terms: SizeTerms, nodes: int) -> int:
    """The size that a job keeps that trains on `nodes` nodes now: these where it permits them, else its fewest."""
    if nodes and terms.permits(nodes):
        return nodes
    return min(terms.sizes, default=terms.min_nodes)

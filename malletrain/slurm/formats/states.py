"""One table of Slurm's words for nodes and jobs, of every release from 17.11 on.

Sources: sinfo(1) NODE STATE CODES, squeue(1) JOB STATE CODES, and slurm.h of 20.11 to 25.11. A node's state comes as
a base word with flags (`IDLE+DRAIN`, scontrol and JSON), or as one word with suffixes (`mixed*`, `idle~`, sinfo).
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache
from typing import NamedTuple, TypeVar

from malletrain.domain.snapshot import NodeState, SlurmState

#: What sinfo appends to a state (sinfo(1)); `+` closes a compact word of a node shared with another cluster.
SUFFIXES = {
    "*": "NOT_RESPONDING",
    "~": "POWERED_DOWN",
    "#": "POWERING_UP",
    "%": "POWERING_DOWN",
    "!": "POWER_DOWN",
    "$": "MAINTENANCE",
    "@": "REBOOT_REQUESTED",
    "^": "REBOOT_ISSUED",
    "-": "PLANNED",
}

#: Long, compact and older spellings of one word, by that word.
_SPELT = {
    "ALLOCATED": "ALLOC",
    "MIXED": "MIX",
    "DOWN": "ERROR ERR",
    "FUTURE": "FUTR",
    "UNKNOWN": "UNK",
    "COMPLETING": "COMP",
    "DRAIN": "DRAINED DRAINING DRNG",
    "FAIL": "FAILING FAILG",
    "MAINTENANCE": "MAINT",
    "RESERVED": "RESV RES",
    "PLANNED": "PLND",
    "REBOOT_REQUESTED": "REBOOT REBOOT_TOGGLE",
    "REBOOT_ISSUED": "BOOT",
    "POWERED_DOWN": "POWER",
    "POWERING_UP": "POWER_UP POW_UP",
    "POWERING_DOWN": "POW_DN",
    "NOT_RESPONDING": "NO_RESPOND",
    "INVALID": "INVAL INVALID_REG",
    "BLOCKED": "BLOCK",
    "PERFCTRS": "NPC",
}
#: Words that are spelt in one way.
_PLAIN = "IDLE REBOOT_CANCELED POWER_DOWN NET CLOUD EXTERNAL DYNAMIC_NORM DYNAMIC_FUTURE RESUME UNDRAIN"

#: What each spelling stands for: a word, or a base and a flag at once.
WORDS: dict[str, tuple[str, ...]] = {
    **{spelling: (word,) for word, those in _SPELT.items() for spelling in (word, *those.split())},
    **{word: (word,) for word in _PLAIN.split()},
    "POWER_DRAIN": ("DRAIN", "POWER_DOWN"),
}

_BUSY = frozenset({"ALLOCATED", "MIXED"})
_REBOOT = frozenset({"REBOOT_REQUESTED", "REBOOT_ISSUED"})
_GOING_DOWN = frozenset({"POWER_DOWN", "POWERING_DOWN"})
_NOT_UP = frozenset({"POWERED_DOWN", "POWERING_UP"})


class NodeWords(NamedTuple):
    """One node's state: our word, Slurm's own words, and those that are in no table."""

    state: NodeState
    flags: frozenset[str]
    unknown: tuple[str, ...]


#: squeue -l prints 8 letters of a state, sinfo -l 11; no word is cut shorter than this.
MIN_CUT_LETTERS = 7

Meaning = TypeVar("Meaning")


def meaning(words: Mapping[str, Meaning], word: str, least: int = MIN_CUT_LETTERS) -> Meaning | None:
    """What `word` stands for, also where Slurm cut its end off to fit a column, to no fewer than `least` letters;
    None: unknown, or ambiguous."""
    if word in words or len(word) < least:
        return words.get(word)
    meant = {each for whole, each in words.items() if whole.startswith(word)}
    return meant.pop() if len(meant) == 1 else None


@lru_cache(maxsize=4096)
def node_state(text: str) -> NodeWords:
    """The state that `text` means: `IDLE+DRAIN`, `mixed*`, `DOWN*+POWERED_DOWN`, `plnd`, `alloc+`, ...

    The strongest word wins: what keeps a node from us, or takes it from us, goes before what it does now.
    """
    words: set[str] = set()
    unknown: list[str] = []
    for part in text.upper().split("+"):
        part = part.strip()
        while part and part[-1] in SUFFIXES:
            words.add(SUFFIXES[part[-1]])
            part = part[:-1]
        if not part:
            continue
        those = meaning(WORDS, part)
        if those is None:
            unknown.append(part)
        else:
            words.update(those)
    if not words:
        return NodeWords(NodeState.UNKNOWN, frozenset(), tuple(unknown) or (text,))
    return NodeWords(_strongest(words, bool(unknown)), frozenset(words), tuple(unknown))


def _strongest(words: set[str], some_unknown: bool) -> NodeState:
    """In Slurm's own order (node_state_string), so that sinfo's one word and scontrol's many mean the same; but what
    the staff wants (maintenance, reboot, reservation) counts on a busy node too, since a pilot must leave it."""
    busy = bool(words & _BUSY)
    if "DRAIN" in words or "FAIL" in words:
        return NodeState.DRAINED
    if words & _REBOOT and not busy:
        return NodeState.MAINT  # a node that boots again is DOWN meanwhile
    if "DOWN" in words or "INVALID" in words or "FUTURE" in words:
        return NodeState.DOWN
    if words & _GOING_DOWN or (words & _NOT_UP and not busy):
        # A busy node that powers up was given to a job already: that is plain ALLOCATED.
        return NodeState.POWERED_DOWN
    if "MAINTENANCE" in words or words & _REBOOT:
        return NodeState.MAINT
    if "RESERVED" in words:
        return NodeState.RESERVED
    if "COMPLETING" in words:
        return NodeState.COMPLETING
    if "MIXED" in words:
        return NodeState.MIXED
    if "ALLOCATED" in words:
        return NodeState.ALLOCATED
    if "NOT_RESPONDING" in words:
        return NodeState.DOWN  # sinfo(1): "will not be allocated any new work"; a busy one keeps its job for now
    if "BLOCKED" in words or "UNKNOWN" in words or "PERFCTRS" in words or some_unknown:
        return NodeState.UNKNOWN
    if "PLANNED" in words:
        return NodeState.PLANNED
    return NodeState.IDLE if "IDLE" in words else NodeState.UNKNOWN


#: How strongly a state keeps a node from us, for answers that name one node twice.
_WEAKEST_FIRST = "idle planned mixed allocated completing unknown reserved maint drained powered_down down"
STRENGTH = {NodeState(state): rank for rank, state in enumerate(_WEAKEST_FIRST.split())}

#: Long and compact job states, and the flags that JSON lists beside a base state, by what they mean.
_JOB_SPELT = {
    SlurmState.PENDING: "PENDING PD REQUEUE_HOLD RH SPECIAL_EXIT SE RESV_DEL_HOLD RD",
    SlurmState.RUNNING: "RUNNING R RESIZING RS SIGNALING SI EXPEDITING",
    SlurmState.SUSPENDED: "SUSPENDED S STOPPED ST",
    SlurmState.COMPLETING: "COMPLETING CG STAGE_OUT SO",
    SlurmState.CONFIGURING: "CONFIGURING CF POWER_UP_NODE",
    SlurmState.COMPLETED: "COMPLETED CD",
    SlurmState.CANCELLED: "CANCELLED CA REVOKED RV",
    SlurmState.FAILED: "FAILED F LAUNCH_FAILED RECONFIG_FAIL",
    SlurmState.TIMEOUT: "TIMEOUT TO DEADLINE DL",
    SlurmState.PREEMPTED: "PREEMPTED PR",
    SlurmState.NODE_FAIL: "NODE_FAIL NF BOOT_FAIL BF",
    SlurmState.OUT_OF_MEMORY: "OUT_OF_MEMORY OOM",
    SlurmState.REQUEUED: "REQUEUED RQ REQUEUE_FED RF",
}
JOB_WORDS = {spelling: state for state, those in _JOB_SPELT.items() for spelling in those.split()}

#: Of several words that JSON lists for one job, the one that says whether it holds nodes goes first.
_JOB_PRECEDENCE = (SlurmState.COMPLETING, SlurmState.CONFIGURING, SlurmState.SUSPENDED, SlurmState.REQUEUED)


@lru_cache(maxsize=1024)
def job_state(text: str) -> SlurmState:
    """The state that `text` means: `RUNNING`, `R`, `CANCELLED by 1000`, `RUNNING,COMPLETING`, `PENDING+REQUEUED`."""
    words = (part.split() for part in text.upper().replace("+", ",").split(","))
    meanings = (meaning(JOB_WORDS, word[0]) for word in words if word)
    known = [state for state in meanings if state is not None]
    return next((state for state in (*_JOB_PRECEDENCE, *known) if state in known), SlurmState.UNKNOWN)

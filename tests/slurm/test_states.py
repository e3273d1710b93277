"""The one table of states: sinfo's words, scontrol's compounds and JSON's lists mean the same."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from malletrain.domain.snapshot import FREE_STATES, NodeState, SlurmState
from malletrain.slurm.formats.states import STRENGTH, SUFFIXES, WORDS, job_state, node_state

NODES = {
    # sinfo, long and compact
    "idle": "idle", "allocated": "allocated", "alloc": "allocated", "mixed": "mixed", "mix": "mixed",
    "planned": "planned", "plnd": "planned", "completing": "completing", "comp": "completing",
    "reserved": "reserved", "resv": "reserved", "maint": "maint", "drained": "drained", "drain": "drained",
    "draining": "drained", "drng": "drained", "down": "down", "down*": "down", "fail*": "drained",
    "failing": "drained", "unknown": "unknown", "unk": "unknown", "future": "down", "inval": "down",
    "idle*": "down", "allocated*": "allocated", "drained*": "drained", "mixed*": "mixed",
    "idle~": "powered_down", "idle#": "powered_down", "idle%": "powered_down", "idle!": "powered_down",
    "alloc#": "allocated", "alloc~": "allocated", "mix#": "mixed", "alloc%": "powered_down", "mixed!": "powered_down",
    "idle$": "maint", "allocated$": "maint", "idle@": "maint", "alloc@": "maint", "reboot^": "maint",
    "idle-": "planned", "mixed-": "mixed", "allocated+": "allocated", "powering_down": "powered_down",
    "power_up": "powered_down", "no_respond": "down", "blocked": "unknown", "perfctrs": "unknown",
    # scontrol and JSON
    "IDLE": "idle", "IDLE+DRAIN": "drained", "IDLE+PLANNED": "planned", "MIXED+PLANNED": "mixed",
    "IDLE+COMPLETING": "completing", "IDLE+COMPLETING+PLANNED": "completing", "ALLOCATED+COMPLETING": "completing",
    "MIXED+DRAIN": "drained", "DOWN*+DRAIN": "drained", "DOWN*+POWERED_DOWN": "down", "IDLE+CLOUD": "idle",
    "IDLE+CLOUD+POWERED_DOWN": "powered_down", "ALLOCATED+CLOUD+POWERING_UP": "allocated",
    "MIXED+CLOUD+POWER_DOWN": "powered_down", "IDLE+RESERVED": "reserved", "mixed+reserved": "reserved",
    "ALLOCATED+MAINTENANCE": "maint", "IDLE+MAINTENANCE+RESERVED": "maint", "IDLE+NOT_RESPONDING": "down",
    "DOWN+REBOOT_ISSUED": "maint", "ALLOCATED+REBOOT_REQUESTED": "maint", "IDLE+DYNAMIC_NORM": "idle",
    "IDLE+INVALID_REG": "down", "IDLE+BLOCKED": "unknown", "IDLE+FAIL": "drained", "idle+drain": "drained",
}  # fmt: skip


@pytest.mark.parametrize(("text", "word"), sorted(NODES.items()))
def test_node_words(text: str, word: str) -> None:
    assert node_state(text).state == word
    assert not node_state(text).unknown


@given(st.lists(st.sampled_from(sorted(WORDS)), min_size=1, max_size=4), st.text("".join(SUFFIXES), max_size=2))
def test_a_free_node_has_no_word_that_keeps_it_from_us(words: list[str], suffix: str) -> None:
    found = node_state("+".join(words) + suffix)
    if found.state in FREE_STATES:
        assert found.flags <= {
            "IDLE", "PLANNED", "CLOUD", "EXTERNAL", "DYNAMIC_NORM", "DYNAMIC_FUTURE", "RESUME", "UNDRAIN", "NET",
            "REBOOT_CANCELED",
        }  # fmt: skip


@given(st.text(max_size=40))
def test_any_text_has_a_state_and_unknown_words_are_never_free(text: str) -> None:
    found = node_state(text)
    assert found.state in STRENGTH
    if found.unknown:
        assert found.state not in FREE_STATES


@pytest.mark.parametrize(
    ("text", "state"),
    [
        ("PENDING", SlurmState.PENDING),
        ("R", SlurmState.RUNNING),
        ("RUNNING,COMPLETING", SlurmState.COMPLETING),
        ("PENDING,REQUEUED", SlurmState.REQUEUED),
        ("REQUEUE_HOLD", SlurmState.PENDING),
        ("CANCELLED by 1000", SlurmState.CANCELLED),
        ("RUNNING,POWER_UP_NODE", SlurmState.CONFIGURING),
        ("BOOT_FAIL", SlurmState.NODE_FAIL),
        ("OOM", SlurmState.OUT_OF_MEMORY),
        ("DEADLINE", SlurmState.TIMEOUT),
        ("nonsense", SlurmState.UNKNOWN),
        ("", SlurmState.UNKNOWN),
    ],
)
def test_job_words(text: str, state: SlurmState) -> None:
    assert job_state(text) is state


def test_every_node_state_has_a_strength() -> None:
    assert set(STRENGTH) == set(NodeState)

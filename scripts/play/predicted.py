"""What replay says of a play, from the nodes that the queue really left."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scripts.play.site import BIN

#: When which node had no main job: from and to, Unix seconds, in order and apart from each other.
Holes = Mapping[str, Sequence[tuple[float, float]]]


@dataclass(frozen=True, slots=True)
class ReplayedSite:
    """What a replay takes from the site that plays: its malletrain.toml, and Slurm's settings with `epilog_s`."""

    config: Path
    scheduler: Path
    seconds: float


def from_holes(
    site: ReplayedSite, holes: Holes, begin: float, trace: Path, costs: Sequence[str]
) -> Mapping[str, Any]:
    """The harvest as replay has it of these holes; `trace`: a file for them."""
    trace.write_text(node_changes(holes, begin))
    return _replay(site, trace, ["--end", f"{begin + site.seconds:.2f}", *costs])


def idle_spans(
    busy: Sequence[tuple[str, float, float]], nodes: Sequence[str], begin: float, end: float
) -> dict[str, list[tuple[float, float]]]:
    """When which node had no main job, between `begin` and `end`; `busy`: node, from, to of each job, which may meet
    or overlap (Slurm's times are whole seconds)."""
    found = {}
    for node in nodes:
        at, spans = begin, []
        for start, stop in sorted((a, b) for name, a, b in busy if name == node):
            if start > at:
                spans.append((at, min(start, end)))
            at = max(at, stop)
        if at < end:
            spans.append((at, end))
        found[node] = [(a, b) for a, b in spans if b > a]
    return found


def node_changes(holes: Holes, begin: float) -> str:
    """The holes as a log of node events that `malletrain replay` reads."""
    changes = [(begin, node, "busy") for node, spans in holes.items() if not spans or spans[0][0] > begin]
    for node, spans in holes.items():
        changes += [(at, node, state) for a, b in spans for at, state in ((a, "idle"), (b, "busy"))]
    return "time,node,state\n" + "".join(f"{at:.2f},{node},{state}\n" for at, node, state in sorted(changes))


def _replay(site: ReplayedSite, trace: Path, options: Sequence[str]) -> Mapping[str, Any]:
    answer, config = trace.with_suffix(".json"), trace.with_suffix(".toml")
    settings = '[replay]\nlikely_outages = "count"\nprocs_per_node = 1\n'
    config.write_text(f"{site.config.read_text()}\n{settings}")
    argv: list[str | Path] = [BIN / "malletrain", "replay", trace, "--mix", "endless:1", "--config", config]
    argv += ["--scheduler", site.scheduler, *options, "--json", answer]
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    found: Mapping[str, Any] = next(iter(json.loads(answer.read_text())["policies"].values()))
    return found

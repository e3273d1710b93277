"""What replay says of a play, from the nodes that the queue really left."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from scripts.play.site import BIN

#: When which node had no main job: from and to, Unix seconds, in order and apart from each other.
Holes = Mapping[str, Sequence[tuple[float, float]]]


def predicted(
    holes: Holes, begin: float, end: float, folder: Path, config: str, *options: str | Path
) -> Mapping[str, Any]:
    """The harvest as replay has it of these holes, with one endless job.

    Args:
        folder: for its files.
        config: text of its malletrain.toml.
        options: more of `malletrain replay`.
    """
    trace, settings, answer = folder / "holes.csv", folder / "replay.toml", folder / "replay.json"
    trace.write_text(node_changes(holes, begin))
    settings.write_text(config)
    argv: list[str | Path] = [BIN / "malletrain", "replay", trace, "--mix", "endless:1", "--config", settings]
    argv += ["--end", f"{end:.2f}", *options, "--json", answer]
    subprocess.run(argv, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    found: Mapping[str, Any] = next(iter(json.loads(answer.read_text())["policies"].values()))
    return found


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

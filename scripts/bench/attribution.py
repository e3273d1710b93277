"""Does the daemon say rightly which main jobs pilots delayed, and for how long? Checked against labs without pilots.

Takes plays of `scripts.bench.harm`, in which four labs play the same jobs at the same moments, and sets each job's
delay against its twin beside the one that `malletrain promise --main-jobs` gives. `--journals` reckons the daemon's
part anew from the journals that the plays kept, with the code as it is now, and tells jobs that queued behind others
while hardly any pilot ran from those that pilots stood in the way of.

    python -m scripts.bench.harm --log LOG.swf.gz --profile site --json run1.json --journal run1.db
    python -m scripts.bench.attribution run1.json
    python -m scripts.bench.attribution run1.json --journals run1.db
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from malletrain.domain.event import Event
from malletrain.loop.trackers.main_promise import PromiseTracker
from malletrain.replay.scoring.journal_waterfall import pilot_spans
from malletrain.store.event_reader import read_events
from scripts.play.attribution import agreement, attributed_pairs


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("runs", type=Path, nargs="+", help="plays of scripts.bench.harm, as --json wrote them")
    parser.add_argument("--journals", type=Path, nargs="+", default=[], help="their journals, in the same order")
    options = parser.parse_args()
    if options.journals and len(options.journals) != len(options.runs):
        parser.error("--journals: one for each play, in the same order")
    pairs = []
    for number, path in enumerate(options.runs):
        run = json.loads(path.read_text())
        pilots = None
        if options.journals:
            events = list(read_events(options.journals[number]))
            run["attributed"] = anew(events, run["attributed"]["cycle_s"])
            pilots = [(span.start, span.end) for span in pilot_spans(events, run["begin"] + run["seconds"])]
        print(f"{run['log']} window {run['choice']}, profile {run['profile']}, load {fmean(run['load']):.1f}")
        pairs += attributed_pairs(run, pilots)
    print("\n".join(agreement(pairs)))
    return 0


def anew(events: Sequence[Event], cycle_s: float) -> dict[str, Any]:
    """What the daemon would say of its journal; `cycle_s`: seconds from one backfill cycle to the next."""
    tracker = PromiseTracker(cycle_s)
    for event in events:
        tracker.apply(event)
    return {
        "main_jobs": [
            {"main_job": each.main_job, "delay_s": each.delay_s, "cause": each.cause.value}
            for each in tracker.delays(0.0)
        ]
    }


if __name__ == "__main__":
    sys.exit(main())

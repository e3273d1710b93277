"""What would my idle nodes have trained? The daemon's sizing over a recorded trace.

In a notebook:

    from pathlib import Path
    from malletrain.replay import ResizeCosts, Window, cluster_trace, mix, parse_policy, read_trace, replay
    trace = cluster_trace(read_trace(Path("jobs.sacct.gz")), Window())
    answer = replay(trace, mix("imagenet:100", ResizeCosts()), [parse_policy("auto", None)])
    answer.scores["auto"].share_of_ideal
"""

from __future__ import annotations

from malletrain.domain.job import ResizeCosts
from malletrain.replay.cluster_trace import Window, cluster_trace
from malletrain.replay.job_files import read_jobs
from malletrain.replay.options import Options
from malletrain.replay.run import replay
from malletrain.replay.sizer import parse_policy
from malletrain.replay.traces import read_trace
from malletrain.replay.workload import mix

__all__ = [
    "Options",
    "ResizeCosts",
    "Window",
    "cluster_trace",
    "mix",
    "parse_policy",
    "read_jobs",
    "read_trace",
    "replay",
]

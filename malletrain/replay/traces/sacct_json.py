"""`sacct --json` and slurmdbd's REST answers, Slurm 21.08 to 25.11, one job at a time in bounded memory."""

from __future__ import annotations

import json
import math
import re
from codecs import getincrementaldecoder
from collections.abc import Iterator
from typing import Any, BinaryIO

from malletrain.domain.errors import InvalidInput
from malletrain.replay.traces.sacct import STILL_RUNNING, Records
from malletrain.replay.traces.source import read_chunk
from malletrain.replay.traces.trace import JobRecords, Tally
from malletrain.replay.traces.words import expand
from malletrain.slurm.formats.json_shapes import number

CHUNK_BYTES = 1 << 20
#: A job with thousands of steps is a few MB of JSON.
MAX_OBJECT_CHARS = 64 << 20

_BETWEEN = re.compile(r"[ \t\r\n,]*")


def read_sacct_json(stream: BinaryIO, source: str, tally: Tally, ignore: frozenset[str] = frozenset()) -> JobRecords:
    """Reads the array `jobs` of the document.

    Raises:
        InvalidInput: no such array, a damaged document, or no job that ran.
    """
    records = Records(tally)
    count = 0
    for count, job in enumerate(_jobs(stream, source), 1):
        if not isinstance(job, dict):
            reason = "not a job"
        elif job.get("partition") in ignore:
            reason = "of an ignored partition"
        else:
            tally.of_cluster(str(job.get("cluster") or ""), f"{source}: job {count}")
            reason = _add(records, job, count, source)
        if reason:
            tally.skip(reason, count)
    return records.finish(source, "sacct JSON", count)


def _jobs(stream: BinaryIO, source: str) -> Iterator[Any]:
    decoder = json.JSONDecoder(strict=False)  # names may hold control characters as they are
    utf8 = getincrementaldecoder("utf-8")("replace")  # a chunk may end within a letter
    text = ""
    while '"jobs"' not in text or "[" not in text.partition('"jobs"')[2]:
        chunk = read_chunk(stream, CHUNK_BYTES, source)
        if not chunk or len(text) > MAX_OBJECT_CHARS:
            raise InvalidInput(source, 'is JSON without an array "jobs"; give the output of `sacct --json`')
        text += utf8.decode(chunk)
    text = text.partition('"jobs"')[2].partition("[")[2]
    done = at = 0
    while True:
        at = _BETWEEN.match(text, at).end()  # type: ignore[union-attr]  # it matches nothing, too
        if text.startswith("]", at):
            return
        try:
            job, at = decoder.raw_decode(text, at)
        except (json.JSONDecodeError, RecursionError) as error:
            where, left = f"{source}: job {done + 1}", len(text) - at
            chunk = read_chunk(stream, max(CHUNK_BYTES, left), where)
            if not chunk or left > MAX_OBJECT_CHARS or isinstance(error, RecursionError):
                raise InvalidInput(where, f"is damaged or cut off: {error}") from error
            text, at = text[at:] + utf8.decode(chunk), 0
            continue
        done += 1
        yield job


def _moment(value: Any) -> float | None:
    """Unix seconds; None where there is no such time, which is written as 0; nan where it is no sound one."""
    seconds = number(value)
    if not seconds:
        return None
    return seconds if 0 < seconds < 1e11 else math.nan


def _add(records: Records, job: dict[str, Any], place: int, source: str) -> str:
    """Takes one job into the records; the reason where it is left out."""
    times, state = job.get("time"), job.get("state")
    if not isinstance(times, dict):
        return "no times"
    words = state.get("current") if isinstance(state, dict) else state
    word = str(words[0] if isinstance(words, list) and words else words or "").upper()
    submit, start, end = (_moment(times.get(key)) for key in ("submission", "start", "end"))
    if any(moment is not None and math.isnan(moment) for moment in (submit, start, end)):
        return "unreadable time"
    records.saw(submit, start, end)
    if start is None or word == "PENDING":
        return "never started"
    if end is None or word in STILL_RUNNING:
        end = math.inf
        records.saw(start + (number(times.get("elapsed")) or 0.0))
    if end <= start:
        return "ran for 0 s" if end == start else "ends before it starts"
    text = job.get("nodes")
    nodes = expand(text) if isinstance(text, str) else ()
    if nodes is None:
        return "unreadable node list"
    count, limit = number(job.get("allocation_nodes")), number(times.get("limit"))
    records.add(
        str(job.get("job_id", place)), submit, start, end, nodes, int(count or 1), place, source,
        limit=60.0 * limit if limit else math.nan, priority=number(job.get("priority")) or 0.0,
    )  # fmt: skip
    return ""

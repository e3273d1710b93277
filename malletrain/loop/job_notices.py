"""Notices due to the owners of jobs, as `mtbatch --mail-type` asks for them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from malletrain.domain.job import JobPhase, MailType, MalleableJob
from malletrain.loop.job_state import JobState

#: What is older (seconds) is no news: the daemon was away for so long, or could not send.
MAX_NOTICE_AGE_S = 86400.0


@dataclass(frozen=True, slots=True)
class JobNotice:
    """One message: `what` has become of a job (BEGIN or END), `at` that time, with the `reason` for people."""

    job: MalleableJob
    what: MailType
    phase: JobPhase
    at: float
    reason: str
    samples: float


def notices_due(records: Iterable[JobState], now: float) -> Iterator[JobNotice]:
    """Notices that owners asked for and have not got, job by job. A job that fails ends too: one notice says so."""
    for record in records:
        wanted, notified = record.job.mail, record.notified
        if not wanted:
            continue
        begun, over = record.begun_at, record.over_since
        begins = MailType.BEGIN in wanted and MailType.BEGIN not in notified and over is None
        if begins and begun is not None and now - begun < MAX_NOTICE_AGE_S:
            yield JobNotice(record.job, MailType.BEGIN, JobPhase.RUNNING, begun, "", record.samples_done)
        ends = MailType.END in wanted or (MailType.FAIL in wanted and record.phase is JobPhase.FAILED)
        if ends and MailType.END not in notified and over is not None and now - over < MAX_NOTICE_AGE_S:
            yield JobNotice(record.job, MailType.END, record.phase, over, record.reason, record.samples_done)

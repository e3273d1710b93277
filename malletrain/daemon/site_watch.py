"""What is minded of the site beside its queue: whether the harvest partition is fit, and room for more tasks."""

from collections.abc import Callable

import structlog

from malletrain.domain.errors import ClusterUnavailable, InvalidInput
from malletrain.slurm.command import Commands
from malletrain.slurm.site import partition_checks, site_facts
from malletrain.slurm.site.held_task_limits import known_jobs, limits_of, why_full

#: slurm.conf is read again so often, in seconds: its partitions may change while the daemon runs.
AGAIN_S = 300.0

#: Seconds between two counts of the jobs in slurmctld.
COUNT_S = 30.0


class SiteWatch:
    """The site as it is by now; `facts` were read when the daemon began."""

    def __init__(
        self,
        commands: Commands,
        harvest: site_facts.Harvest,
        facts: site_facts.SiteFacts,
        elapsed: Callable[[], float],
    ) -> None:
        self.facts = facts
        self._commands, self._harvest, self._elapsed = commands, harvest, elapsed
        self._read_at = elapsed()
        self._unfit = ""
        self._counted_at, self._known_jobs = float("-inf"), 0
        self._log: structlog.stdlib.BoundLogger = structlog.get_logger("malletraind")

    def refuse_unfit(self) -> None:
        """Pilots are started only where Slurm itself would remove them for the main queue.
        Raises InvalidInput: with every fault of the partition, and its remedy."""
        findings = partition_checks.check_harvest_partition(self.facts, self._harvest)
        for finding in findings:
            if finding.level is site_facts.Level.WARNING:
                self._log.warning("site", what=finding.what, remedy=finding.remedy)
        faults = [f"{f.what}; {f.remedy}" for f in findings if f.level is site_facts.Level.ERROR]
        if faults:
            raise InvalidInput("slurm.partition", "\n".join(faults))

    def why_unfit(self) -> str:
        """What is wrong with the harvest partition by now, or nothing: staff may change it while the daemon runs."""
        if self._elapsed() - self._read_at >= AGAIN_S:
            self._read_at = self._elapsed()
            try:
                self.facts = site_facts.read(self._commands).knowing(self.facts)
            except ClusterUnavailable as error:
                self._log.warning("site", what=f"slurm.conf was not read again: {error}")
                return self._unfit
            findings = partition_checks.check_harvest_partition(self.facts, self._harvest)
            self._unfit = "; ".join(f.what for f in findings if f.level is site_facts.Level.ERROR)
        return self._unfit

    def why_no_more_tasks(self, queued: int) -> str:
        """Why no held tasks may be added, or nothing. `queued`: jobs that are seen in the queue now."""
        if self._elapsed() - self._counted_at >= COUNT_S:
            self._counted_at = self._elapsed()
            try:
                self._known_jobs = known_jobs(self._commands)
            except ClusterUnavailable:
                self._known_jobs = 0
        return why_full(max(queued, self._known_jobs), limits_of(self.facts.words).max_job_count)

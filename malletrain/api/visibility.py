"""What one caller may see: Slurm's PrivateData (slurm.conf(5)), applied to rows and to the texts in them. Pure."""

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from malletrain.domain.event import MainJobMet, MainJobsArrived, OperatorRequest, SizesDecided
from malletrain.domain.snapshot import LEAVE_STATES
from malletrain.wire.rows import EventRow, JobRow, NodeRow, ProfileRow, StatusRow

#: Slurm's ids have punctuation in them (`12_[3-5,9]`, `12+1`), and a sentence may go on with some.
_MAIN_JOB = re.compile(r"\b(?:planned start of job|main job) \S*[^\s,;:.)]")
_JOB = re.compile(r"\bjob '?((?:het)?\d+)[\w+]*(?:\[[^\]]*\])?'?")
_RESERVATION = re.compile(r"\breservation \S*[^\s,;:)]")
_NODE_STATE = re.compile(rf"\bis (?:{'|'.join(sorted(LEAVE_STATES))})\b.*", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Visibility:
    """A caller's view. `uid`: the only user whose jobs are shown, `usage_uid`: whose usage is (None: all users');
    `user`: that user's name; `nodes`, `reservations`: whether these are shown at all."""

    uid: int | None = None
    usage_uid: int | None = None
    user: str = ""
    nodes: bool = True
    reservations: bool = True

    @staticmethod
    def under(private_data: Collection[str], uid: int, user: str) -> "Visibility":
        """That of an ordinary user where Slurm's PrivateData has these words.

        Usage counts jobs, so `jobs` hides it as well as `usage` does."""
        private = {word.lower() for word in private_data}
        everything = "all" in private
        jobs = everything or "jobs" in private
        return Visibility(
            uid if jobs else None,
            uid if jobs or "usage" in private else None,
            user,
            not everything and "nodes" not in private,
            not everything and "reservations" not in private,
        )

    @property
    def is_whole(self) -> bool:
        """Whether nothing is hidden."""
        return self.uid is None and self.usage_uid is None and self.nodes and self.reservations

    def sees_job_of(self, uid: int) -> bool:
        """Whether malleable jobs of this user are shown."""
        return self.uid is None or uid == self.uid

    def sees_main_job_of(self, user: str) -> bool:
        """Whether jobs of the main queue of this user are shown."""
        return self.uid is None or user == self.user

    def words(self, text: str, jobs: Collection[int] = (), main_job: str = "") -> str:
        """A reason or message without the names that are hidden; malleable `jobs` and the `main_job` may be named."""
        if self.uid is not None:
            named = {main_job, *map(str, jobs)}

            def is_named(found: re.Match[str]) -> bool:
                return found[0].rpartition(" ")[2].strip("'") in named

            text = _MAIN_JOB.sub(lambda m: m[0] if main_job and m[0].endswith(f" {main_job}") else "a main job", text)
            text = _JOB.sub(lambda m: m[0] if is_named(m) else "another job", text)
        if not self.reservations:
            text = _RESERVATION.sub("a reservation", text)
        if not self.nodes:
            text = _NODE_STATE.sub("is wanted by the staff", text)
        return text

    def job(self, row: JobRow) -> JobRow:
        """A job that the caller may see."""
        if self.is_whole:
            return row
        return replace(
            row,
            reason=self.words(row.reason, {row.id}),
            pilots=tuple(replace(pilot, reason=self.words(pilot.reason, {row.id})) for pilot in row.pilots),
        )

    def profile(self, row: ProfileRow) -> ProfileRow:
        """What is known of a job that the caller may see."""
        return replace(row, next=self.words(row.next, {row.job}))

    def status(self, row: StatusRow) -> StatusRow:
        """The picture, made of the caller's own jobs where jobs are private. Counts of nodes stay."""
        if self.is_whole:
            return row
        own = {job.id for job in row.jobs}
        nodes = tuple(self._node(node, own) for node in row.nodes) if self.nodes else ()
        sizes = {job: size for job, size in row.decision.sizes.items() if self.uid is None or int(job) in own}
        return replace(
            row,
            nodes=nodes,
            jobs=tuple(map(self.job, row.jobs)),
            decision=replace(row.decision, sizes=sizes),
            notices=tuple(self.words(notice, own) for notice in row.notices),
        )

    def _node(self, row: NodeRow, own: Collection[int]) -> NodeRow:
        if self.uid is None or row.job in own:
            return row
        return replace(row, job=None, pilot="", until=None, holder="")

    def event(self, row: EventRow) -> EventRow:
        """An event of a job that the caller may see, or of no job (`store.views` chooses which)."""
        if self.is_whole:
            return row
        of_all = (SizesDecided.kind, MainJobMet.kind, MainJobsArrived.kind)
        if row.kind in of_all and self.uid is not None:
            return replace(row, reason="", data={})  # it is about all jobs, or about another user's
        if row.kind == OperatorRequest.kind and self.uid is not None and row.data.get("user"):
            return replace(row, reason="", data={})
        own = () if row.job is None else (row.job,)
        data = {key: self._value(value, own) for key, value in row.data.items() if self._may_have(key)}
        return replace(row, reason=self.words(row.reason, own), data=data)

    def _may_have(self, key: str) -> bool:
        return self.uid is None or key != "main_job"

    def _value(self, value: Any, own: Collection[int]) -> Any:
        if isinstance(value, str):
            return self.words(value, own)
        if isinstance(value, Mapping):
            return {key: self._value(item, own) for key, item in value.items() if self._may_have(str(key))}
        if isinstance(value, (list, tuple)):
            return [self._value(item, own) for item in value]
        return value

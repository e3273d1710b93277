"""What a daemon knows when it starts: its journal, folded."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from malletrain.daemon.process.short_collections import no_collections
from malletrain.domain.event import Event
from malletrain.learn.prior_jobs import MAX_PRIOR_JOBS, application_of
from malletrain.loop.ledger import Ledger
from malletrain.loop.membership.next_world import LastWorlds, last_worlds
from malletrain.loop.trackers.account_usage import MAX_JOBS_PER_ACCOUNT
from malletrain.store.start import FOLDED_WHOLE, MeasuredJob, what_counts


@dataclass(frozen=True, slots=True)
class FirstFold:
    """The ledger and the last worlds, and from how many events they were folded."""

    events: int = 0
    ledger: Ledger = field(default_factory=Ledger)
    worlds: Mapping[int, LastWorlds] = field(default_factory=dict)


def folded(journal: Path, whole: int = FOLDED_WHOLE) -> FirstFold:
    """Fold the journal, as `malletrain.store.start` reads it. Raises StoreError: it cannot be read."""
    ledger, count = Ledger(), 0
    old_stays, events = what_counts(journal, _that_tell, whole)
    for stay in old_stays:
        ledger.usage.add(*stay)

    def applied() -> Iterator[Event]:
        nonlocal count
        for event in events:
            ledger.apply((event,))
            count += 1
            yield event

    with no_collections():
        worlds = last_worlds(applied())
    return FirstFold(count, ledger, worlds)


def _that_tell(over: Sequence[MeasuredJob]) -> list[int]:
    """The newest of each application that were measured on several sizes, and the newest of each account: from them
    follow the curves of new jobs, and what accounts submit."""
    of_application, of_account, found = Counter[tuple[str, str]](), Counter[str](), []
    for each in reversed(over):
        key = application_of(each.user, each.name)
        is_evidence = each.sizes > 1 and of_application[key] < MAX_PRIOR_JOBS
        of_application[key] += is_evidence
        if is_evidence or of_account[each.account] < MAX_JOBS_PER_ACCOUNT:
            found.append(each.id)
        of_account[each.account] += 1
    return found

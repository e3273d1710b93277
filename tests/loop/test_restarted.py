"""A daemon that was restarted under running pilots: what it must do before any of their workers has been heard."""

from __future__ import annotations

import pytest

from malletrain.domain.decision import StartPilot
from malletrain.domain.errors import Refused
from malletrain.domain.event import (
    ActionIntent,
    Event,
    GenerationPublished,
    GenerationSwitched,
    WorkerLost,
    WorkerWarm,
)
from malletrain.domain.job import PilotPhase
from malletrain.loop.membership.admission import Claim, admit, holding
from malletrain.loop.membership.members import Membership
from malletrain.loop.membership.next_world import LastWorlds, last_worlds
from malletrain.loop.membership.state import MembershipSettings
from malletrain.loop.tick import Loop
from malletrain.sizing.registry import policy
from malletrain.wire.messages import CheckedIn, Exited, Plan, Seat, Standing, Warm
from tests.messages import naming
from tests.world import RULES, World, job, main_job

PILOTS = 3


class Restarted:
    """Another daemon over the journal of one that has started three pilots."""

    def __init__(self) -> None:
        self.world = world = World(nodes=PILOTS)
        world.submit(job(1, most=PILOTS))
        world.tick()
        world.tick()
        self.nodes = {pilot: name for name, pilot in world.running().items()}
        assert len(self.nodes) == PILOTS
        self.seats = tuple(Seat(f"{pilot}.0", f"{name}:1") for pilot, name in sorted(self.nodes.items()))
        self.members = Membership(
            MembershipSettings(),
            world.clock,
            lambda claim: admit(self.loop.views, claim),
            last_worlds(world.journal.read()),
        )
        self.loop = Loop(world.cluster, self.members, world.journal, world.clock, policy("exact"), RULES)
        self.loop.restore()

    def ask_for_a_node(self) -> str:
        """A main job wants a node; the pilot that is to leave."""
        self.world.cluster.set_main([main_job(9)])
        self.world.clock.advance(10.0)
        self.loop.tick()
        (pilot,) = (p.id for p in self.loop.views[1].pilots.values() if p.phase is PilotPhase.LEAVING)
        return pilot

    def hello(self, pilot: str, *, trains: bool) -> None:
        standing = Standing(7, self.seats, 40, "", 7) if trains else None
        self.members.hello(Claim(1, pilot, 0, self.nodes[pilot], 1001), standing)


def test_a_pilot_that_must_leave_is_asked_once_its_world_is_heard() -> None:
    daemon = Restarted()
    leaver = daemon.ask_for_a_node()
    first, *others = sorted(daemon.nodes, key=lambda pilot: pilot == leaver)
    daemon.hello(first, trains=True)
    daemon.world.clock.advance(0.1)
    daemon.members.tick()
    plan = daemon.members.directive_for(f"{first}.0").plan
    assert plan is not None
    assert not plan.has(f"{leaver}.0"), "the others need not wait for its own hello"
    assert not plan.urgent
    for pilot in others:
        daemon.hello(pilot, trains=True)
    told = daemon.members.directive_for(f"{leaver}.0")
    assert "main job 9" in (told.leave or "")


def test_a_worker_that_must_leave_and_has_no_world_goes_with_its_hello() -> None:
    daemon = Restarted()
    leaver = daemon.ask_for_a_node()
    daemon.hello(leaver, trains=False)
    assert "main job 9" in (daemon.members.directive_for(f"{leaver}.0").end or "")
    daemon.loop.react()
    kinds = [event.kind for event in daemon.world.journal.events if event.pilot == leaver]
    assert "worker_left" in kinds
    assert leaver not in daemon.world.running().values(), "its node is free at once"


def test_an_intent_that_the_daemon_before_had_only_written_is_carried_out() -> None:
    daemon = Restarted()
    leaver = daemon.ask_for_a_node()
    again = Membership(MembershipSettings(), daemon.world.clock, lambda claim: admit(daemon.loop.views, claim))
    again.hello(Claim(1, leaver, 0, daemon.nodes[leaver], 1001))
    assert "main job 9" in (again.directive_for(f"{leaver}.0").end or "")


class Unheard:
    """A daemon restarted over three pilots whose workers train, and hear nothing of it; a fourth's worker is new."""

    def __init__(self) -> None:
        self.world = world = World(nodes=PILOTS + 1)
        world.submit(job(1, most=PILOTS))
        world.tick()
        self.trainers = sorted(world.running().values())
        assert len(self.trainers) == PILOTS
        now = world.clock.now()
        world.loop.record([Event(now, WorkerWarm(f"{pilot}.0"), 1, pilot) for pilot in self.trainers])
        world.clock.advance(10.0)
        world.tick()  # the look shows the starts only now
        self.members = Membership(
            MembershipSettings(),
            world.clock,
            lambda claim: admit(self.loop.views, claim),
            {1: LastWorlds(4)},
            holding=lambda job: holding(self.loop.views, job),
        )
        self.loop = Loop(world.cluster, self.members, world.journal, world.clock, policy("exact"), RULES)
        self.loop.restore()
        free = next(name for name in world.cluster.nodes if name not in world.running())
        new = next(p.id for p in self.loop.views[1].pilots.values() if p.phase is PilotPhase.HELD)
        start = StartPilot(1, new, free, 600.0, "another hole")
        world.cluster.start([start])
        self.loop.record([Event(world.clock.now(), ActionIntent(start), 1, new, free)])
        self.newcomer = f"{new}.0"
        self.members.hello(Claim(1, new, 0, free, 1001))
        self.members.report(self.newcomer, Warm(f"{free}:1", {}))

    def pass_time(self, seconds: float) -> None:
        self.world.clock.advance(seconds)
        self.members.polled(self.newcomer)
        self.members.tick()
        self.loop.react()

    @property
    def plan(self) -> Plan | None:
        return self.members.directive_for(self.newcomer).plan

    def begun(self) -> tuple[str, ...]:
        return self.plan.workers if self.plan else ()

    def still_running(self) -> set[str]:
        return set(self.trainers) & set(self.world.running().values())


def test_a_look_that_shows_a_start_after_its_worker_was_heard_does_not_call_the_pilot_idle() -> None:
    daemon = Unheard()
    pilots = daemon.loop.views[1].pilots
    assert all(pilots[name].phase is PilotPhase.RUNNING and pilots[name].ready for name in daemon.trainers)
    assert all(pilots[name].idle_since is None for name in daemon.trainers)


def test_no_world_begins_beside_one_that_the_restarted_daemon_has_not_heard() -> None:
    daemon = Unheard()
    for _ in range(11):
        daemon.pass_time(5.0)
        assert daemon.plan is None, "two worlds of one job would train"
    assert daemon.still_running() == set(daemon.trainers), "they have a minute to say hello"


def test_workers_that_stay_unheard_give_up_their_nodes_before_another_world_begins() -> None:
    daemon = Unheard()
    daemon.pass_time(MembershipSettings().adopt_s + 1.0)
    assert daemon.still_running() == set()
    assert daemon.begun() == (), "their processes may not have ended"
    daemon.pass_time(10.0)
    assert daemon.loop.tick() is not None  # sees that they have
    daemon.pass_time(2.0)
    assert daemon.begun() == (daemon.newcomer,)


def test_a_world_that_is_brought_in_time_takes_the_newcomer_in() -> None:
    daemon = Unheard()
    daemon.pass_time(30.0)
    nodes = {pilot: node for node, pilot in daemon.world.running().items()}
    seats = tuple(Seat(f"{pilot}.0", f"{nodes[pilot]}:1") for pilot in daemon.trainers)
    for pilot in daemon.trainers:
        daemon.members.hello(Claim(1, pilot, 0, nodes[pilot], 1001), Standing(3, seats, 40, "", 4))
    daemon.pass_time(0.5)
    assert daemon.plan is not None
    assert not daemon.plan.urgent
    assert set(daemon.plan.workers) >= {seat.worker for seat in seats}


def test_nodes_that_are_not_given_back_do_not_hold_the_job_up_for_ever() -> None:
    daemon = Unheard()
    daemon.world.cluster.down = "slurmctld does not answer"
    daemon.pass_time(MembershipSettings().adopt_s + 1.0)
    for _ in range(23):
        daemon.pass_time(5.0)
        assert daemon.plan is None
    daemon.pass_time(10.0)
    assert daemon.plan is not None


def _left_behind() -> tuple[Restarted, str, list[str]]:
    """The journal has a second generation without the first pilot, which trained; the daemon is another one."""
    daemon = Restarted()
    first, *others = sorted(daemon.nodes)
    now = daemon.world.clock.now()
    daemon.world.loop.record(
        [
            Event(now, GenerationPublished(6, tuple(sorted(daemon.nodes))), 1),
            Event(now, GenerationSwitched(6, 3), 1, first),
            Event(now, GenerationPublished(7, tuple(others), "fault"), 1),
            Event(now, GenerationSwitched(7, 2), 1, others[0]),
        ]
    )
    last = last_worlds(daemon.world.journal.read())
    assert last[1].published == 7
    daemon.members = Membership(
        MembershipSettings(), daemon.world.clock, lambda claim: admit(daemon.loop.views, claim), last
    )
    return daemon, first, others


def test_a_worker_whose_world_trained_on_without_it_is_refused_after_a_restart() -> None:
    daemon, first, _ = _left_behind()
    claim = Claim(1, first, 0, daemon.nodes[first], 1001)
    with pytest.raises(Refused, match=naming("generation 7")):
        daemon.members.hello(claim, Standing(6, daemon.seats, 40, "", 6))


def test_one_that_was_left_behind_is_refused_also_after_the_others_have_said_hello() -> None:
    """Were it kept, it would hold an older state in no world, and those who hold the newest might end before it."""
    daemon, first, others = _left_behind()
    newest = Standing(7, tuple(seat for seat in daemon.seats if seat.pilot in others), 60, "", 7)
    daemon.members.hello(Claim(1, others[0], 0, daemon.nodes[others[0]], 1001), newest)
    with pytest.raises(Refused, match=naming("generation 7")):
        daemon.members.hello(Claim(1, first, 0, daemon.nodes[first], 1001), Standing(6, daemon.seats, 40, "", 6))


def test_one_that_was_left_behind_is_refused_also_once_the_others_have_ended() -> None:
    """They had trained on by a quorum's plan, of which the journal has nothing. What they saved is newer."""
    daemon = Restarted()
    first, *others = sorted(daemon.nodes)
    seats = tuple(seat for seat in daemon.seats if seat.pilot in others)
    for pilot in others:
        daemon.members.hello(Claim(1, pilot, 0, daemon.nodes[pilot], 1001), Standing(506, seats, 60, "", 506))
    for pilot in others:
        daemon.members.report(f"{pilot}.0", Exited(-9))
    assert daemon.members.world(1) is None
    with pytest.raises(Refused, match=naming("generation 506")):
        daemon.members.hello(Claim(1, first, 0, daemon.nodes[first], 1001), Standing(6, daemon.seats, 40, "", 6))


def test_a_member_of_the_newest_world_that_is_still_in_the_one_before_does_not_bring_that_back() -> None:
    daemon, _, others = _left_behind()
    claim = Claim(1, others[0], 0, daemon.nodes[others[0]], 1001)
    daemon.members.hello(claim, Standing(6, daemon.seats, 40, "", 6))
    assert daemon.members.directive_for(f"{others[0]}.0").plan is None


@pytest.mark.parametrize("published", [True, False])
def test_a_later_world_that_was_published_and_may_have_been_taken_loses_its_nodes_first(published: bool) -> None:
    """Its only member took it while the daemon before died; the others, who had been given up then, are back."""
    daemon = Restarted()
    first, second, third = sorted(daemon.nodes)
    now = daemon.world.clock.now()
    past = [Event(now, GenerationPublished(6, (first, second, third)), 1)]
    past += [Event(now, GenerationSwitched(6, 3), 1, first)]
    past += [Event(now, WorkerWarm(f"{pilot}.0"), 1, pilot) for pilot in daemon.nodes]
    past += [Event(now, GenerationPublished(7, (third,), "fault"), 1)] if published else []
    daemon.world.loop.record(past)
    world = daemon.world
    daemon.loop = Loop(world.cluster, daemon.members, world.journal, world.clock, policy("exact"), RULES)
    daemon.loop.restore()
    daemon.members = Membership(
        MembershipSettings(), daemon.world.clock, lambda claim: admit(daemon.loop.views, claim),
        last_worlds(daemon.world.journal.read()), holding=lambda job: holding(daemon.loop.views, job),
    )  # fmt: skip
    names = [f"{first}.0", f"{second}.0"]
    for pilot in (first, second):
        claim = Claim(1, pilot, 0, daemon.nodes[pilot], 1001)
        daemon.members.hello(claim, Standing(6, daemon.seats, 40, "", 6))
    for _ in range(130):
        daemon.world.clock.advance(0.5)
        for name in names:
            daemon.members.polled(name)
            if (number := daemon.members.directive_for(name).check_in) is not None:
                daemon.members.report(name, CheckedIn(number, 6, 40, True))
        daemon.members.tick()
    plan = daemon.members.directive_for(names[0]).plan
    fenced = [e.pilot for e in daemon.members.reports() if isinstance(e.payload, WorkerLost) and e.payload.fenced]
    assert fenced == ([third] if published else [])
    assert plan is not None and plan.has(f"{third}.0") == published, "none begins without it yet"

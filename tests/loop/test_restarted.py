"""A daemon that was restarted under running pilots: what it must do before any of their workers has been heard."""

from __future__ import annotations

from malletrain.domain.event import EventKind
from malletrain.domain.job import PilotPhase
from malletrain.loop.membership.admission import Claim, admit
from malletrain.loop.membership.members import Membership
from malletrain.loop.membership.next_world import last_generations
from malletrain.loop.membership.state import MembershipSettings
from malletrain.loop.tick import Loop
from malletrain.sizing.registry import policy
from malletrain.wire.messages import Seat, Standing
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
            last_generations(world.journal.read()),
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
    assert EventKind.WORKER_LEFT in kinds
    assert leaver not in daemon.world.running().values(), "its node is free at once"


def test_an_intent_that_the_daemon_before_had_only_written_is_carried_out() -> None:
    daemon = Restarted()
    leaver = daemon.ask_for_a_node()
    again = Membership(MembershipSettings(), daemon.world.clock, lambda claim: admit(daemon.loop.views, claim), {})
    again.hello(Claim(1, leaver, 0, daemon.nodes[leaver], 1001))
    assert "main job 9" in (again.directive_for(f"{leaver}.0").end or "")

"""From one world to the next.

Each plan is prepared by a builder thread of its own, with its own client of the store, while training goes on: the
new group is made and a barrier passed in it, so that being ready is known and not hoped. An ordinary plan is taken
between two steps, when all members of the old world have said in one round that they are ready for it; an urgent one
at once.

Whoever enters a world calls the roll: who holds the training state, as of which round. Members that hold the newest
give it to those that hold none, and their last sums to those that missed the last round.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from typing import NoReturn

import torch

from malletrain.elastic.errors import Aborted, ElasticError, PeerLost, Released, TrainingOver
from malletrain.elastic.groups import Background, Board, Group, Pending
from malletrain.elastic.link import Link
from malletrain.elastic.majority import Muster, Stand
from malletrain.elastic.node_group import make_world_group
from malletrain.elastic.node_link import Crew, Follower
from malletrain.elastic.place import Place
from malletrain.elastic.roll import Entry, Roll, read
from malletrain.elastic.room import Room, from_text, to_text
from malletrain.elastic.rounds import SLICE_S, Rounds, World
from malletrain.elastic.start import end_script
from malletrain.elastic.state import TrainingState, pack, unpack
from malletrain.elastic.transfer import give, take
from malletrain.wire import messages

log = logging.getLogger("malletrain.elastic")

#: For how long a builder waits for the other members.
BUILD_PATIENCE = timedelta(seconds=60)

#: Without a world and without a word from the daemon for so long, a worker ends.
LONELY_S = 60.0

#: For how long a member waits for another's store, when they meet without the daemon.
MEET_PATIENCE = timedelta(seconds=1)

#: Where on its board a member says what the state looks like, and how many processes its node has.
STATE_KEY, PLACES_KEY = "state", "places"

#: When it leaves, the first process of a node waits so long for the others; or so long where they save their parts.
MATES_PATIENCE_S, SAVE_PATIENCE_S = 1.0, 60.0

#: In a broken world and without a word from the daemon for so long, a worker saves the state and ends.
ORPHANED_S = 60.0


class _Build:
    """A group in the making."""

    def __init__(self, plan: messages.Plan, make: Callable[[], Group]) -> None:
        self.plan = plan
        self.group: Group | None = None
        self.given_up = False
        self._work = Background(lambda: self._make(make), f"build-{plan.generation}")

    def _make(self, make: Callable[[], Group]) -> None:
        group = make()
        try:
            barrier = group.all_reduce(torch.zeros(group.size))  # an element for each, so that all take part
            while not barrier.wait(SLICE_S) and not self.given_up:
                pass
        except PeerLost:
            group.bury()
            raise
        if barrier.wait(0.0):
            self.group = group
        else:
            group.bury()

    def done(self, seconds: float) -> bool:
        """Whether it is made. Raises `PeerLost` when it cannot be."""
        return self._work.wait(seconds)

    def is_over(self, seconds: float) -> bool:
        """Whether nothing runs for it any more."""
        return self._work.is_over(seconds)


class Switch:
    """The worlds of one worker: implements `rounds.Watch` and what `link.Answers` needs of a world.

    Args:
        worker: this worker's name.
        host: the address at which peers reach this machine.
        save: write a checkpoint; returns where, or None when none is kept.
        load: restore the newest checkpoint; whether there was one.
        top_up: submit so many held tasks more.
        board: in the store that this worker serves.
        prepare: called by the builder of a group, to make ready what the first step with peers needs.
        place: of this process in its node.
        crew: the other processes of its node, at the first one.
    """

    def __init__(
        self,
        worker: str,
        host: str,
        state: TrainingState,
        *,
        save: Callable[[], str | None],
        load: Callable[[], bool],
        top_up: Callable[[int], None],
        board: Board | None = None,
        prepare: Callable[[], None] = lambda: None,
        place: Place = Place(),  # noqa: B008 - it is frozen
        crew: Crew | None = None,
    ) -> None:
        self._worker = worker
        self._host = host
        self._state = state
        self._save = save
        self._load = load
        self._place = place
        self._crew = crew
        self._mending_since: float | None = None
        self.link: Link | Follower | None = None
        self.rounds = Rounds(self)
        self.whole = False
        self.released = False
        self.finishing = False  #: this worker is in its last round
        self.ending = ""  #: why this process was told to end
        self._top_up = top_up
        self._board = board
        self._prepare = prepare
        #: The plan whose group this member began to build last: it meets for no older one any more.
        self._bound: messages.Plan | None = None
        self._broken = 0  #: the highest generation that does not work, as this member has found
        self._addresses: dict[str, str] = {}
        self._plans: dict[int, messages.Plan] = {}
        self._builds: dict[int, _Build] = {}
        self._lock = threading.Lock()
        self._ready = 0
        self._described = False
        self._room: Room | None = None
        if board is not None:
            board.put(PLACES_KEY, str(place.size))

    # --- rounds.Watch -----------------------------------------------------------------------------------------

    def check(self, generation: int) -> None:
        link = self.link
        if link is None:
            return
        if link.end is not None:
            if self.finishing:
                raise TrainingOver(link.end)
            self.release(link.end)
        plan = link.plan
        if plan is not None and plan.urgent and plan.generation > generation:
            raise Aborted(plan.reason)

    def fault(self, generation: int, how: str, detail: str) -> None:
        self._broken = max(self._broken, generation)
        if self.link is not None:
            self.link.say(messages.Fault(generation, self._state.position.step, how, detail[:400]))

    def ready_for(self) -> int:
        return self._ready

    def is_ending(self) -> bool:
        return bool(self.ending)

    # --- link.Answers -----------------------------------------------------------------------------------------

    def on_plan(self, plan: messages.Plan) -> None:
        """Begin to prepare a plan. Called by the link's thread."""
        seated = any(seat.worker == self._worker for seat in plan.members)
        if plan.generation <= self.rounds.world.generation:
            return
        with self._lock:
            self._plans[plan.generation] = plan
            for older in self._builds.values():
                older.given_up = True
            build = _Build(plan, lambda: self._make(plan)) if seated else None
            if build is not None:
                self._builds[plan.generation] = build
        if plan.urgent:
            return
        if build is None:
            self._ready = plan.generation
        else:
            threading.Thread(target=self._await_build, args=(build,), name="malletrain-ready", daemon=True).start()

    def builds_over(self, seconds: float) -> bool:
        """Give up every group in the making; whether none is being made any more after so long."""
        with self._lock:
            builds = list(self._builds.values())
        end = time.monotonic() + seconds
        for build in builds:
            build.given_up = True
        return all(build.is_over(max(0.0, end - time.monotonic())) for build in builds)

    def check_in(self, number: int) -> messages.CheckedIn:
        since = self.rounds.waiting_since
        return messages.CheckedIn(
            answers=number,
            generation=self.rounds.world.generation,
            step=self._state.position.step,
            whole=(self._crew is None or self._crew.check(self.mending_s())) and self.whole,
            stuck_s=0.0 if since is None else max(0.0, time.monotonic() - since),
        )

    def mending_s(self) -> float:
        since = self._mending_since
        return 0.0 if since is None or self._state.mesh is None else time.monotonic() - since

    def standing(self) -> messages.Standing | None:
        world, link = self.rounds.world, self.link
        if not self.whole or not world.generation:
            return None
        seen = link.plan.generation if link is not None and link.plan is not None else 0
        seats = tuple(messages.Seat(name, self._addresses.get(name, "")) for name in world.workers)
        own = self._addresses.get(self._worker, "")
        return messages.Standing(world.generation, seats, self._state.position.step, own, seen)

    def on_top_up(self, tasks: int) -> None:
        self._top_up(tasks)

    def while_away(self) -> messages.Plan | None:
        world, bound, link = self.rounds.world, self._bound, self.link
        if not self.whole or world.nodes < 2 or bound is None or self._board is None or link is None:
            return None
        seen = max(bound.generation, link.plan.generation if link.plan else 0)
        muster = Muster(bound.generation, bound.members, world.workers, Stand(self._worker, world.generation, seen))
        if self._broken < bound.generation and not muster.called(self._board):
            return None
        log.info("the daemon is away and generation %d is broken: the members meet", bound.generation)
        return muster.hold(self._board, lambda address: Board.at(address, MEET_PATIENCE))

    def _make(self, plan: messages.Plan) -> Group:
        node = [seat.worker for seat in plan.members].index(self._worker)
        if len(plan.members) > 1 and self.rounds.world.size == 1:
            self._prepare()
        if not self.whole and self._room is None and plan.members[0].worker != self._worker:
            self._room = _find_room(plan.store, self._place)
        return make_world_group(
            plan.store, plan.generation, node, len(plan.members), self._place, self._host, BUILD_PATIENCE
        )

    def _await_build(self, build: _Build) -> None:
        plan = build.plan
        try:
            while not build.done(1.0):
                pass
            if build.group is None:
                return
            log.debug("generation %d: ready", plan.generation)
            self._ready = max(self._ready, plan.generation)
        except ElasticError:
            return  # the training thread meets it
        except PeerLost as lost:
            if not build.given_up:
                time.sleep(0.5)  # so that tries which fail at once do not follow each other at once
                self.fault(plan.generation, "build", str(lost))

    # --- the training thread ----------------------------------------------------------------------------------

    def join(self) -> None:
        """Wait for the first plan that has a seat for this worker, and enter its world.

        Raises:
            Released: the job is over, or the daemon has been silent for too long.
        """
        link = self._need_link()
        tried = 0
        while True:
            with link.changed:
                while (plan := link.plan) is None or plan.generation <= tried or not self._is_seated(plan):
                    self.check(0 if plan is None else plan.generation)
                    if time.monotonic() - link.last_contact > LONELY_S:
                        self.release(f"no word from the daemon for {LONELY_S:.0f} s")
                    if self.ending:
                        self.leave(0, None)
                    link.changed.wait(0.5)
            tried = plan.generation
            try:
                self._enter(plan, self._built(plan))
                return
            except Aborted:
                continue

    def enter_fixed(self, group: Group) -> None:
        """Enter the one world of processes that were started together, and take over the first one's state.

        Raises:
            ElasticError: a member is lost, or is not like the others.
        """
        seats = tuple(messages.Seat(f"rank{rank}", "") for rank in range(group.size // self._place.size))
        self._worker = seats[group.rank // self._place.size].worker
        try:
            self._enter(messages.Plan(1, seats, reason="started together"), group)
        except Aborted as aborted:
            raise ElasticError(
                f"the processes that were started together cannot train together: {aborted}"
            ) from aborted

    def take(self, generation: int) -> None:
        """Switch to the generation that all have agreed on.

        Raises:
            Aborted: it broke on the way.
            Released: it has no seat for this worker.
        """
        plan = self._plans[generation]
        if not self._is_seated(plan):
            self._depart(plan)
        self._enter(plan, self._built(plan))

    def recover(self) -> None:
        """After a fault: abandon the world, wait for an urgent plan, enter that.

        Raises:
            Released: this worker is not part of it, or the daemon has been silent for too long.
        """
        self._mending_since = time.monotonic()
        try:
            self._mend()
        finally:
            self._mending_since = None

    def _mend(self) -> None:
        broken = self.rounds.world
        if self.link is None and broken.size > 1:
            raise ElasticError("a process that was started with this one is lost, and without a daemon none follows")
        link = self._need_link()
        broken.group.bury()
        since = time.monotonic()
        tried = broken.generation
        while True:
            with link.changed:
                while (plan := link.plan) is None or not plan.urgent or plan.generation <= tried:
                    self.check(plan.generation if plan else 0)
                    if time.monotonic() - max(since, link.last_contact) > ORPHANED_S:
                        saved = self._save()
                        self.release(f"peers are lost and the daemon is silent; state saved at {saved}")
                    link.changed.wait(SLICE_S)
            tried = plan.generation
            if not self._is_seated(plan):
                self._depart(plan)
            try:
                self._enter(plan, self._built(plan))
                return
            except Aborted:
                continue

    def announce(self, pause_s: float, before: int) -> None:
        """Tell the daemon that this world trains. `before`: the nodes of the world before."""
        world, link = self.rounds.world, self._need_link()

        def in_vain() -> bool:
            plan = link.plan
            return link.end is not None or (plan is not None and plan.urgent and plan.generation > world.generation)

        if self._crew is not None and not self._crew.wait_entered(world.generation, in_vain):
            return
        link.say(
            messages.Switched(
                world.generation,
                self._state.position.step,
                world.nodes,
                max(0.0, pause_s),
                world.nodes > before,
            )
        )

    def describe(self) -> None:
        """Say once, after a step, what the state looks like, so that newcomers have the memory for it at hand."""
        if self._described or self._board is None:
            return
        self._described, board, text = True, self._board, to_text(self._state.specs())

        def put() -> None:
            try:
                board.put(STATE_KEY, text)
            except PeerLost as lost:
                log.info("newcomers will not know what the state looks like: %s", lost)

        Background(put, "describe")

    def only_shrinks(self, generation: int) -> bool:
        """Whether a plan adds nobody: such a one can be taken wherever members meet."""
        return all(seat.worker in self.rounds.world.workers for seat in self._plans[generation].members)

    # --- inside -----------------------------------------------------------------------------------------------

    def _need_link(self) -> Link | Follower:
        if self.link is None:
            raise ElasticError("no daemon: this process trains alone")
        return self.link

    def _is_seated(self, plan: messages.Plan) -> bool:
        return any(seat.worker == self._worker for seat in plan.members)

    def _built(self, plan: messages.Plan) -> Group:
        """The group of a plan, once it is made."""
        self._bound = plan
        with self._lock:
            build = self._builds.get(plan.generation)
            if build is None:
                build = self._builds[plan.generation] = _Build(plan, lambda: self._make(plan))
        try:
            while not build.done(SLICE_S):
                self._check_newer(plan)
        except PeerLost as lost:
            self._check_newer(plan)
            self.fault(plan.generation, "build", str(lost))
            raise Aborted(str(lost)) from lost
        if build.group is None:
            raise Aborted("the group was given up")
        return build.group

    def _check_newer(self, plan: messages.Plan) -> None:
        """A member drops a plan for an urgent one alone; a newcomer for any newer one."""
        self.check(plan.generation)
        latest = self.link.plan if self.link is not None else None
        if not self.whole and latest is not None and latest.generation > plan.generation:
            raise Aborted("superseded")

    def _enter(self, plan: messages.Plan, group: Group) -> None:
        """Call the roll, bring everyone to the same state, and make the plan's world the present one."""
        names = tuple(seat.worker for seat in plan.members)
        world = World(plan.generation, names, group, plan.batch, group.size // len(names))
        began = time.monotonic()
        try:
            self._roll_call(plan, group)
            log.debug("generation %d: state alike after %.3f s", plan.generation, time.monotonic() - began)
        except PeerLost as lost:
            group.bury()
            self.fault(plan.generation, "closed", str(lost))
            raise Aborted(str(lost)) from lost
        except Aborted:
            group.bury()
            raise
        self._addresses = {seat.worker: seat.address for seat in plan.members}
        old, self.rounds.world = self.rounds.world, world
        if old.group is not group:
            old.group.bury()
        with self._lock:
            self._plans = {n: p for n, p in self._plans.items() if n >= plan.generation}
            for number in [n for n in self._builds if n <= plan.generation]:
                build = self._builds.pop(number)
                build.given_up = True
                if number < plan.generation and build.group is not None:
                    build.group.bury()

    def _roll_call(self, plan: messages.Plan, group: Group) -> None:
        rounds, places = self.rounds, self._place.size
        signatures = self._state.signatures()
        words = rounds.last[-1].numel() if rounds.last else 0
        mine = torch.tensor([int(self.whole), rounds.done, words, *signatures.values()], dtype=torch.int64)
        table = [torch.zeros_like(mine) for _ in range(group.size)]
        began = time.monotonic()
        self._wait(group.all_gather(table, mine), plan)
        log.debug("generation %d: roll called after %.3f s", plan.generation, time.monotonic() - began)
        said = [row.tolist() for row in table]
        entries = [Entry(bool(row[0]), row[1], row[2]) for row in said]
        roll = read(entries, places, sharded=self._state.mesh is not None)
        if roll.newest < 0 and group.rank in roll.donors:
            # A world that begins, or begins again: its oldest member knows where.
            self._load()
            rounds.done = self._state.position.rounds
            self.whole = True
        theirs = said[roll.donors[0]][3:]
        odd = [name for (name, own), other in zip(signatures.items(), theirs, strict=True) if own != other]
        if odd:
            raise ElasticError(
                f"{self._worker} is not like {plan.members[roll.donors[0] // places].worker} in its "
                f"{', '.join(odd)}: every worker must run the same script, with the same arguments and releases"
            )
        if group.rank in roll.behind and rounds.done < roll.newest - 1:
            self.release("fell behind: the others are more than one round ahead")
        if group.rank // places in roll.stranded():
            self.release("nobody can give the training state in the middle of a step that some have committed")
        if roll.behind and places > 1:
            self._hear_words(plan, group, roll)
        self._move(plan, group, roll)
        if not roll.behind:
            rounds.last = []  # all are in the same round: nobody will ask for the sums of the one before
            rounds.complete = []

    def _hear_words(self, plan: messages.Plan, group: Group, roll: Roll) -> None:
        """Whoever lacks the last round has its sums already: of the words, the donors tell all."""
        words = torch.zeros(roll.words, dtype=torch.int64)
        if group.rank == roll.donors[0]:
            words.copy_(self.rounds.last[-1])
        self._wait(group.all_reduce(words), plan, firm=True)
        if group.rank in roll.behind:
            if not self.rounds.complete:
                self.release("the sums of a round that others have committed are not here")
            self.rounds.given = [*self.rounds.complete[:-1], words]

    def _move(self, plan: messages.Plan, group: Group, roll: Roll) -> None:
        """Give and take, all at once: the state down a tree to newcomers, the last sums to those that lack them."""
        work: list[Background] = []
        got: list[tuple[bytes, list[torch.Tensor]]] = []
        givers, donors = roll.givers(), roll.donors
        source = {taker: giver for giver, takers in givers.items() for taker in takers}
        behind = roll.behind if self._place.size == 1 else []
        source |= {taker: donors[n % len(donors)] for n, taker in enumerate(behind)}
        late = [taker for taker in behind if source[taker] == group.rank]
        on = givers.get(group.rank, [])
        if group.rank in donors and on:
            self._state.position.rounds = self.rounds.done
            whole = self._state.capture()
            work.append(Background(lambda: give(group, on, *whole), "give"))
        if late:
            sums = pack(self.rounds.last)
            work.append(Background(lambda: give(group, late, *sums), "give"))
        if group.rank in source:
            work.append(Background(lambda: got.append(take(group, source[group.rank], on, self._room)), "take"))
        for each in work:
            self._wait(each, plan, firm=True)
        if not got:
            return
        if group.rank in roll.fresh:
            self._state.restore(*got[0])
            self.rounds.done = self._state.position.rounds
            self.whole, self._room = True, None
        else:
            self.rounds.given = list(unpack(*got[0]))

    def _wait(self, operation: Pending, plan: messages.Plan, *, firm: bool = False) -> None:
        """`firm`: the roll has been called, so the others have come; only an urgent plan can change that."""
        limit = time.monotonic() + self.rounds.stall_limit()
        while not operation.wait(SLICE_S):
            if firm:
                self.check(plan.generation)
            else:
                self._check_newer(plan)
            if time.monotonic() > limit:
                self.fault(plan.generation, "stalled", "in the roll call")
                limit = time.monotonic() + self.rounds.stall_limit()

    def _depart(self, plan: messages.Plan) -> None:
        """No seat for this worker: out of the world, in order. When all leave, the first of them saves the state."""
        saved = None
        if not plan.members and self.rounds.world.saves(sharded=self._state.mesh is not None) and self.whole:
            saved = self._save()
        self.leave(plan.generation, saved)

    def release(self, reason: str) -> NoReturn:
        """End this process, and the script around it."""
        log.info("%s ends: %s", self._worker, reason)
        self.released = True
        if self._crew is not None:
            self._crew.close()
        if isinstance(self.link, Follower):
            self.link.close()  # the first process of the node ends the script, when it has said so
        else:
            end_script(os.environ)
        raise Released(reason)

    def leave(self, generation: int, saved: str | None) -> NoReturn:
        """Say that this worker is out, and end."""
        link = self._need_link()
        if self._crew is not None:
            self._crew.wait_gone(SAVE_PATIENCE_S if saved else MATES_PATIENCE_S)
        link.say(messages.Left(generation, self._state.position.step, saved))
        self.rounds.world.group.bury()
        link.flush(2.0)
        self.release(link.leave or self.ending or "left")


def _find_room(store: str, place: Place) -> Room | None:
    """Memory for the state that the member at `store` described; without a description there is none, and the
    transfer takes a little longer.

    Raises:
        ElasticError: its node has another number of processes.
    """
    try:
        board = Board.at(store, MEET_PATIENCE)
        places = board.get(PLACES_KEY)
        if places is not None and places != str(place.size):
            raise ElasticError(
                f"this node has {place.size} training processes and the others have {places}: start as many on each"
            )
        text = board.get(STATE_KEY)
        return Room(from_text(text)) if text is not None else None
    except (PeerLost, ValueError, RuntimeError) as error:  # the last: there is not so much memory
        log.info("no room is made for the state beforehand: %s", error)
        return None

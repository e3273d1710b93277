"""The jumping clock: sweeps a trace event by event, lets a policy size the jobs, and keeps the account.

Between two moments nothing changes, so a job's samples, stalls and activations are exact integrals. This is the
fast path for logs of a million changes; `malletrain.replay.loop_engine` runs the daemon's own loop over the same
trace, and tests hold the two to the same sizes.

What a change costs:
    a node that starts is occupied at once and trains after `activate_s`; its job trains on meanwhile;
    a world that grows or shrinks stands still for `grow_s` / `shrink_s`; one that starts from nothing does not;
    a node that the main queue takes is gone at once, and its job stalls as if it had shrunk.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_left
from collections.abc import Sequence
from time import perf_counter

import numpy as np

from malletrain.decide.holes import limit_s, split_reserve
from malletrain.decide.multi_node_pilots import LEAST_STAY_S, make_room, pilot_width
from malletrain.decide.placement import take_cohorts
from malletrain.decide.reconcile import starts_at_once
from malletrain.replay.cluster_trace import ClusterTrace
from malletrain.replay.options import Options
from malletrain.replay.pilot_rules import HoleRecords, MultiNodeTasks, Turns, cheapest_pilots, cohorts
from malletrain.replay.policy_inputs import ClassesOfNodes, RatesByClass
from malletrain.replay.result import Cause, Log, Result, Totals
from malletrain.replay.scoring.ideal import Ideal
from malletrain.replay.sizer import PolicySizer, SizeBounds, demand, speedups, trained_curve
from malletrain.replay.traces.trace import BUSY, IDLE
from malletrain.replay.workload import TrainingJob
from malletrain.sizing.values import Floats, Ints

#: A job whose rest takes less than so many seconds is done: a float of Unix seconds resolves a quarter of that.
_RESOLUTION_S = 1e-6


class Engine:
    """One policy over one trace."""

    def __init__(
        self,
        trace: ClusterTrace,
        jobs: Sequence[TrainingJob],
        sizer: PolicySizer,
        options: Options,
        count_from: float = -math.inf,
    ) -> None:
        """`jobs` are on the trace's clock (`workload.shifted`). What is before `count_from` (Unix seconds) is
        replayed and not counted."""
        self.trace, self.jobs, self.sizer, self.options = trace, jobs, sizer, options
        self.rules = options.rules
        nodes, n = len(trace.nodes), len(jobs)
        most = [min(each.job.max_nodes, nodes) for each in jobs]
        trained = [trained_curve(each, sizer.choice) for each in jobs]
        by_job = [speedups(each, k, curve) for each, k, curve in zip(jobs, most, trained, strict=True)]
        at_best = [
            speedups(each, k, trained_curve(each, None)) if each.batches else own
            for each, k, own in zip(jobs, most, by_job, strict=True)
        ]
        self.speedup = np.zeros((n, max(most, default=0) + 1))
        for j, row in enumerate(by_job):
            self.speedup[j, : len(row)] = row
        self.unit = np.array([each.curve.of_one for each in jobs])
        self.total = np.array([math.inf if e.job.total_samples is None else e.job.total_samples for e in jobs])
        self.activate = np.array([each.costs.activate_s for each in jobs])
        self.grow = np.array([each.costs.grow_s for each in jobs])
        self.shrink = np.array([each.costs.shrink_s for each in jobs])
        self.ideal = Ideal(jobs, at_best, nodes)
        self.classes = ClassesOfNodes(options.classes, nodes) if options.classes else None
        if self.classes is not None:
            asked = [demand(each, 0) for each in jobs]
            self._by_class = RatesByClass(self.classes, jobs, asked)
        self.arrivals = sorted(range(n), key=lambda j: (jobs[j].job.submitted_at, j))
        # nodes
        self.state = np.full(nodes, BUSY, np.int8)
        self.owner = np.full(nodes, -1, np.int64)
        self.warm = np.zeros(nodes, bool)
        self.started = np.zeros(nodes)
        self.idle_since = np.zeros(nodes)
        self.n_idle = 0
        # jobs
        self.held = np.zeros(n, np.int64)
        #: Sum of `held`.
        self.n_held = 0
        self.world = np.zeros(n, np.int64)
        #: Speed-up of each job's world.
        self.rate = np.zeros(n)
        self.stalled = np.full(n, -math.inf)
        #: When the last of those that stand still goes on.
        self._stalled_until = -math.inf
        self.done = np.zeros(n)
        self.finished = np.full(n, math.nan)
        self.first_start = np.full(n, math.nan)
        self.live: tuple[int, ...] = ()
        self._live = np.empty(0, np.int64)
        #: Whether one of the jobs that are there ends when it has trained enough.
        self._some_end = False
        # what happens of itself
        #: When nodes that pilots have taken are warm, the number of that start, its job and the nodes.
        self._ready: list[tuple[float, int, int, Ints]] = []
        self._limits: list[tuple[float, int, float]] = []
        self._next_arrival = 0
        self._due = False
        self._resized: set[int] = set()
        #: The daemon's rules bind: nodes that change hands are seen free at the next tick.
        self._ruled = bool(options.daemon) and options.tick_s > 0
        self._freed = np.full(nodes, -math.inf)
        #: How long a pilot may last.
        self._pilot_s = options.rules.max_pilot_s
        if self._ruled and self._pilot_s < math.inf:
            self._pilot_s = limit_s(math.inf, options.rules.min_hole_s, options.rules.margin_s, self._pilot_s)
        #: When sizes are looked at again for nodes that change hands, for turns, and for pilots that may make room.
        self._again_at = self._turn_at = self._room_at = math.inf
        self._startable: Ints | None = None
        self._beyond_cap = 0
        self._looked_at = -math.inf
        self._least = [each.job.min_nodes for each in jobs]
        self._most = [each.job.max_nodes for each in jobs]
        self._most_useful = [each.curve.best_size(each.job.max_nodes) for each in jobs]
        self._tasks = MultiNodeTasks(nodes)
        self._holes = None
        if options.rules.max_nodes > 1:
            self._holes = HoleRecords(nodes)
        self._turns = Turns(jobs, options.rules)
        self.now = trace.start
        self._count_from = count_from if count_from > trace.start else math.inf
        self._counts_since = -math.inf
        self.totals = Totals(n)
        sizer.left = lambda j: float(self.total[j] - self.done[j] * self.unit[j])
        sizer.clock = lambda: self.now
        sizer.used = lambda: self.totals.by_job
        self.log = Log()

    def run(self) -> Result:
        """Sweeps the whole trace."""
        trace = self.trace
        began = perf_counter()
        times = trace.time.tolist()
        step, turns_of = 0, None
        while True:
            at = times[step] if step < len(times) else math.inf
            nxt = min(at, self._next_internal(), trace.end, self._count_from)
            if nxt > self.now:
                self._advance(nxt)
            if nxt >= trace.end:
                break
            if nxt >= self._count_from:
                self._begin_to_count()
            self._warm_up()
            self._complete()
            self._expire()
            if at <= nxt:
                self._change(step)
                step += 1
            self._arrive()
            self._due = self._due or self.now >= self._review_at()
            # A look sees which pilots have gone; those that it makes leave are gone at the next.
            changed = self._note_turns(self._tick_after(self.now))
            if self._due and (self.options.tick_s <= 0 or self._tick_after(self.now) <= self.now + 1e-6):
                self._decide()
                changed = self._note_turns(self._tick_after(self.now + 1e-3)) or changed
            if changed or self._live is not turns_of or self.now >= self._turn_at:
                self._turn_at = self._turns.next_change(self._live, self.now)
                turns_of = self._live
            self.totals.rescales += len(self._resized)
            self._resized.clear()
            self.log.sample(
                self.now,
                self.n_idle,
                self.n_held,
                self._speed_now(),
                len(self.live),
                self.totals.speedup,
                self.totals.ideal,
            )
        self._close(np.flatnonzero(self.owner >= 0), Cause.WINDOW)
        submitted = np.array([each.job.submitted_at for each in self.jobs])
        return Result(
            totals=self.totals,
            log=self.log.columns(),
            samples=self.done * self.unit,
            submitted=submitted,
            finished=self.finished,
            first_start=self.first_start,
            wall_s=perf_counter() - began,
        )

    def _begin_to_count(self) -> None:
        """What was counted so far was the run-in."""
        self._counts_since, self._count_from = self.now, math.inf
        self.totals, self.log = Totals(len(self.jobs)), Log()
        self.done[:] = 0.0
        self.first_start[self.held > 0] = self.now
        self.first_start[self.held == 0] = math.nan

    # -- time ------------------------------------------------------------------------------------------------------

    def _note_turns(self, seen_at: float) -> bool:
        """Note which jobs have nodes now, as that look sees it; whether that has changed for one."""
        return self._turns.note(self._live, self.held[self._live], self.now, seen_at)

    def _next_internal(self) -> float:
        """When something next happens that the trace does not say."""
        nxt = self._ready[0][0] if self._ready else math.inf
        if self._limits:
            nxt = min(nxt, self._limits[0][0])
        if self._next_arrival < len(self.arrivals):
            nxt = min(nxt, self.jobs[self.arrivals[self._next_arrival]].job.submitted_at)
        if self._due:
            nxt = min(nxt, self._tick_after(self.now))
        else:
            nxt = min(nxt, max(self.now, self._review_at()))
        live = self._live
        if self._some_end:
            speed = self.rate[live] * self.unit[live]
            with np.errstate(divide="ignore", invalid="ignore"):
                ends = np.maximum(self.now, self.stalled[live]) + (self.total[live] - self._samples(live)) / speed
            ends = ends[(speed > 0) & np.isfinite(ends)]
            if len(ends):
                nxt = min(nxt, max(self.now, float(ends.min())))
        return nxt

    def _review_at(self) -> float:
        """When sizes are to be looked at though nothing has changed: budgets run out while nothing happens, nodes
        change hands, jobs have waited too long, and narrow pilots have been there long enough to make room."""
        if not self.live:
            return math.inf
        return min(self.sizer.review_at, self._again_at, self._turn_at, self._room_at)

    def _samples(self, live: Ints) -> Floats:
        samples: Floats = self.done[live] * self.unit[live]
        return samples

    def _tick_after(self, now: float) -> float:
        tick = self.options.tick_s
        if tick <= 0:
            return now
        return self.trace.start + math.ceil((now - self.trace.start) / tick - 1e-9) * tick

    def _advance(self, until: float) -> None:
        """Nothing changes between now and `until`: integrate."""
        dt = until - self.now
        live, totals = self._live, self.totals
        totals.idle += self.n_idle * dt
        totals.beyond_cap += self._beyond_cap * dt
        if self.rules.keep_idle:
            totals.reserve += min(self.rules.keep_idle, self.n_idle - self.n_held) * dt
        self._count_unheld(dt)
        if len(live):
            world, held = self.world[live], self.held[live]
            if self._stalled_until > self.now:
                running = np.minimum(np.maximum(until - np.maximum(self.stalled[live], self.now), 0.0), dt)
            else:
                running = np.full(len(live), dt)
            speed = self.rate[live]
            self.done[live] += speed * running
            totals.speedup += float(speed @ running)
            training = np.where(speed > 0, world, 0)
            totals.productive += float(training @ running)
            totals.stalled += float(world @ (dt - running)) + float((world - training) @ running)
            occupied = held * dt
            totals.activating += float(np.add.reduce(held - world)) * dt
            totals.occupied += float(np.add.reduce(occupied))
            totals.by_job[live] += occupied
            totals.ideal += self._ideal_now() * dt
        self.now = until

    def _count_unheld(self, dt: float) -> None:
        """Idle nodes without a pilot, by why they have none."""
        unheld = self.n_idle - self.n_held
        if unheld <= 0:
            return
        new_holes = between_pilots = 0
        if unheld > self.rules.keep_idle + self._beyond_cap:  # the others hold back what these leave
            bare = self._free()
            new = self.idle_since[bare] > self._looked_at
            freed = self._freed[bare]
            # A look of the daemon's does not see free what pilots leave at it; an ideal machine takes that at once.
            left = freed >= self._looked_at if self._ruled else freed > self._looked_at
            new_holes, between_pilots = int(np.count_nonzero(new)), int(np.count_nonzero(left & ~new))
        put_off = unheld if math.isfinite(self._again_at) else 0
        self.totals.add_unheld(
            dt,
            unheld,
            reserve=self.rules.keep_idle,
            cap=self._beyond_cap,
            new_holes=new_holes,
            between_pilots=between_pilots,
            starts_put_off=put_off,
        )

    def _speed_now(self) -> float:
        live = self._live
        return float(np.add.reduce(self.rate[live])) if len(live) else 0.0

    def _ideal_now(self) -> float:
        if self.classes is None:
            return self.ideal.at(self.live, self.n_idle)
        return self._by_class.ideal(self.live, self._supply())

    def _supply(self) -> tuple[int, ...]:
        """Idle nodes of each class."""
        assert self.classes is not None
        of = self.classes.of_node[self.state == IDLE]
        return tuple(np.bincount(of, minlength=len(self.classes.names)).tolist())

    def _world_changed(self, j: int) -> None:
        """The world of job j has other nodes: its speed is another."""
        if self.classes is None:
            self.rate[j] = self.speedup[j, self.world[j]]
            return
        of = self.classes.of_node[(self.owner == j) & self.warm]
        world = tuple(np.bincount(of, minlength=len(self.classes.names)).tolist())
        self.rate[j] = self._by_class.samples_per_s(j, world) / self.unit[j]

    # -- what happens ----------------------------------------------------------------------------------------------

    def _warm_up(self) -> None:
        """Nodes whose activation is over join their job's world."""
        due: dict[int, list[Ints]] = {}
        while self._ready and self._ready[0][0] <= self.now:
            _, _, j, nodes = heapq.heappop(self._ready)
            still = (self.owner[nodes] == j) & ~self.warm[nodes]
            still &= self.started[nodes] + self.activate[j] <= self.now + 1e-9
            due.setdefault(j, []).append(nodes[still])
        for j, parts in due.items():  # what a job gets at one moment joins together, and stalls it once
            self._join(j, parts[0] if len(parts) == 1 else np.unique(np.concatenate(parts)))

    def _join(self, j: int, nodes: Ints) -> None:
        if not len(nodes):
            return
        self.warm[nodes] = True
        self._stall(j, float(self.grow[j]))
        self.world[j] += len(nodes)
        self._world_changed(j)

    def _complete(self) -> None:
        if not self._some_end:
            return
        live = self._live
        speed = self.rate[live] * self.unit[live]
        over = live[self.total[live] - self._samples(live) <= speed * _RESOLUTION_S]
        for j in over.tolist():
            self.finished[j] = self.now
            self._release(np.flatnonzero(self.owner == j), j, Cause.JOB_OVER, stall=False)
            self.totals.completed += 1
        if len(over):
            self._set_live(j for j in self.live if not math.isfinite(self.finished[j]))

    def _arrive(self) -> None:
        new: list[int] = []
        while self._next_arrival < len(self.arrivals):
            j = self.arrivals[self._next_arrival]
            if self.jobs[j].job.submitted_at > self.now:
                break
            new.append(j)
            self._next_arrival += 1
        if new:
            self._set_live([*self.live, *new])

    def _set_live(self, live: object) -> None:
        self.live = tuple(sorted(live))  # type: ignore[call-overload]
        self._live = np.array(self.live, dtype=np.int64)
        self._some_end = bool(np.isfinite(self.total[self._live]).any())
        self._due = True

    def _expire(self) -> None:
        """Pilots at the end of their limit leave in order; their nodes are free again."""
        while self._limits and self._limits[0][0] <= self.now:
            _, node, started = heapq.heappop(self._limits)
            if self.owner[node] >= 0 and self.started[node] == started:
                alone = np.array([node])
                together = np.concatenate([alone, self._tasks.co_allocated(alone)])
                self._release(together, int(self.owner[node]), Cause.LIMIT, stall=True)
                self._due = True

    def _limit(self, nodes: Ints) -> None:
        """Pilots that start now on these nodes leave at their limit: under the daemon's rules at a tick before it."""
        until = self.now + self._pilot_s
        if until == math.inf:
            return
        if self._ruled:
            until = max(self._tick_after(until - self.rules.leave_lead_s), self._tick_after(self.now + 1e-3))
        for node in nodes.tolist():
            heapq.heappush(self._limits, (until, node, self.now))

    def _change(self, step: int) -> None:
        """The trace's changes of this moment."""
        part = slice(self.trace.first[step], self.trace.first[step + 1])
        nodes, new = self.trace.node[part], self.trace.state[part]
        old = self.state[nodes]
        if self._holes is not None:
            self._holes.change(self.now, self.state == IDLE, self._tick_after(self.now))
        self.state[nodes] = new
        gone, come = nodes[(old == IDLE) & (new != IDLE)], nodes[(old != IDLE) & (new == IDLE)]
        self.n_idle += len(come) - len(gone)
        self.idle_since[come] = self.now
        taken = gone[self.owner[gone] >= 0]
        begun = self.state[gone] == BUSY
        self.totals.main_starts += bool(begun.any())
        self.totals.main_starts_on_pilots += bool((begun & (self.owner[gone] >= 0)).any())
        if len(taken):
            self._lose(taken)
        self._due = self._due or len(gone) + len(come) > 0

    def _lose(self, nodes: Ints) -> None:
        """The log takes nodes from the jobs that hold them."""
        owners, trained = self.owner[nodes], self.warm[nodes]
        others = self._tasks.co_allocated(nodes)
        self.totals.preemptions += len(nodes)
        self._close(nodes, Cause.PREEMPTED)
        np.subtract.at(self.held, owners, 1)
        self.n_held -= len(nodes)
        np.subtract.at(self.world, owners[trained], 1)
        for j in set(owners[trained].tolist()):
            self._world_changed(j)
            self._stall(j, float(self.shrink[j]))
        for j in set(self.owner[others].tolist()):
            self._release(others[self.owner[others] == j], j, Cause.TASK, stall=True)
        # They leave with their task, not at a look: one at this very moment finds them free.
        self._freed[others] = math.nextafter(self.now, -math.inf)

    def _release(self, nodes: Ints, j: int, cause: Cause, *, stall: bool) -> None:
        """`nodes` leave job j; those that trained shrink its world."""
        if not len(nodes):
            return
        trained = int(np.count_nonzero(self.warm[nodes]))
        self._close(nodes, cause)
        self.held[j] -= len(nodes)
        self.n_held -= len(nodes)
        if trained:
            self.world[j] -= trained
            self._world_changed(j)
            if stall:
                self._stall(j, float(self.shrink[j]))

    def _stall(self, j: int, seconds: float) -> None:
        """The world of job j has changed, and stands still, if there is one."""
        if self.world[j] > 0:
            self._resized.add(j)
            self.stalled[j] = max(self.stalled[j], self.now + seconds)
            self._stalled_until = max(self._stalled_until, self.now + seconds)

    def _close(self, nodes: Ints, cause: Cause) -> None:
        begun = np.maximum(self.started[nodes], self._counts_since)
        self.log.pilots.add(nodes, begun, self.now, self.owner[nodes], cause)
        if cause is not Cause.WINDOW:
            self.totals.lost_activation += float((self.now - begun[~self.warm[nodes]]).sum())
        if self.rules.max_nodes > 1:
            self._tasks.end(nodes, self.owner[nodes])
        self.owner[nodes] = -1
        self.warm[nodes] = False
        self._freed[nodes] = self.now

    # -- deciding --------------------------------------------------------------------------------------------------

    def _decide(self) -> None:
        self._due, self._again_at, self._room_at = False, math.inf, math.inf
        self._looked_at = self.now
        if self._holes is not None:
            self._holes.look(self.state == IDLE, self.now)
        live = self._live
        if not len(live):
            return
        if self.classes is not None:
            self._decide_by_class(self.classes)
            return
        usable = max(0, self.n_idle - self.rules.keep_idle)
        refilled = self._ruled and self._refill_reserve()
        if self.rules.max_nodes > 1:
            self._widen(usable)
            self._make_room()
        nodes = self._within_cap(usable)
        self._beyond_cap = usable - nodes
        counts = self.held[live].tolist()
        bounds = self._bounds(nodes)
        began = perf_counter()
        sizes = np.array(self.sizer(self.live, counts, nodes, bounds), dtype=np.int64)
        self.log.solve_s.append(perf_counter() - began)
        change = sizes - self.held[live]
        for i in np.flatnonzero(change < 0).tolist():
            j = int(live[i])
            mine = np.flatnonzero(self.owner == j)
            if self._tasks.several:
                longest_first = mine[np.lexsort((mine, -self.started[mine]))]
                going = self._tasks.pilots_to_end(longest_first, int(sizes[i]))
            else:
                going = self._oldest(mine, -int(change[i]))
            self._release(going, j, Cause.SHRINK, stall=True)
        growing = np.flatnonzero(change > 0)
        if len(growing) and self._ruled:
            begun = self._begin_within_limits(live[growing], change[growing])
            if not begun and not (self._freed == self.now).any():
                self._again_at = math.inf  # nothing has changed: the next look would find the same
        elif len(growing):
            self._begin(self._free(), live[growing], change[growing])
        if refilled or (self._tasks.several and (change.any() or len(growing))):
            # What is held has changed, and with it how wide pilots are.
            self._again_at = self.now + self.options.tick_s

    def _refill_reserve(self) -> bool:
        """Pilots leave where too few nodes stay idle: then none starts at this look. Whether any left."""
        missing = split_reserve(self.rules.keep_idle, self.n_idle - self.n_held, 0)[2]
        if not missing or not self.n_held:
            return False
        held = np.flatnonzero(self.owner >= 0)
        tasks = self._tasks.of[held] if self._tasks.several else None
        going = cheapest_pilots(held, self.owner[held], self.started[held], tasks, self.jobs, missing)
        going = np.sort(np.concatenate([going, self._tasks.co_allocated(going)]))
        for j in np.unique(self.owner[going]).tolist():
            self._release(going[self.owner[going] == j], j, Cause.SHRINK, stall=True)
        return True

    def _widen(self, nodes: int) -> None:
        """How wide pilots that start now are, where `nodes` nodes can be held."""
        free = max(0, nodes - self.n_held)
        width = pilot_width(self.n_held, free, len(self._tasks), max(self._most), self.rules)
        self._tasks.widen(width, self.n_held)

    def _pilots(self) -> int:
        """How many there are."""
        return len(self._tasks) if self.rules.max_nodes > 1 else self.n_held

    def _make_room(self) -> None:
        """The narrowest pilots leave where the cap keeps wider ones from starting."""
        held = np.flatnonzero(self.owner >= 0)
        room = max(0, self.rules.max_pilots - self._pilots())
        free = self._less_reserve(self._free())
        free = free[self._freed[free] < self.now]
        if len(free) <= room or self._tasks.width == 1:
            return
        waiting = np.unique(self._tasks.groups(len(free)), return_counts=True)[1].tolist()
        lacking = [max(0, self._most_useful[j] - int(self.held[j])) for j in self.live]
        stays_since = self.started[held]
        others = stays_since[stays_since > self.now - LEAST_STAY_S]
        self._room_at = float(others.min(initial=math.inf)) + LEAST_STAY_S
        # The first of a task's nodes stands for it; `held` ascends.
        tasks, first, widths = np.unique(self._tasks.of[held], return_index=True, return_counts=True)
        columns = widths, stays_since[first], held[first], tasks
        there = list(zip(*(column.tolist() for column in columns), strict=True))
        self._tasks.narrowest, going = make_room(there, waiting, lacking, room, self._tasks.width, self.now)
        for task in going:
            nodes = held[self._tasks.of[held] == task]
            self._release(nodes, int(self.owner[nodes[0]]), Cause.SHRINK, stall=True)

    def _within_cap(self, nodes: int) -> int:
        """How many of `nodes` nodes there can be pilots on, and which free ones may be started on at this look."""
        self._startable = None
        if nodes <= self.rules.max_pilots and not self._tasks.several:
            return nodes
        room = max(0, self.rules.max_pilots - self._pilots())
        free = self._less_reserve(self._free())
        seen = self._freed[free] < self.now if self._ruled else np.ones(len(free), np.bool_)
        changing_hands = max(0, len(free) - int(np.count_nonzero(seen)))
        free = free[seen]
        self._startable = free = free[self._tasks.groups(len(free)) < room]
        return min(nodes, self.n_held + len(free) + changing_hands)

    def _less_reserve(self, free: Ints) -> Ints:
        """Of free nodes, best first, those that need not stay idle: the reserve is of nodes that are seen free, the
        worst first, before nodes that pilots leave at this moment."""
        is_seen = self._freed[free] < self.now
        seen, leaving = np.flatnonzero(is_seen)[::-1], np.flatnonzero(~is_seen)[::-1]
        of_free, of_coming, _ = split_reserve(self.rules.keep_idle, len(seen), len(leaving))
        rest = np.delete(free, np.concatenate([seen[:of_free], leaving[:of_coming]]))
        if self._tasks.width > 1:
            rest = rest[np.argsort(self._cohorts()[rest], kind="stable")]
        return rest

    def _bounds(self, nodes: int) -> SizeBounds | None:
        """What the daemon's rules ask of sizes besides."""
        live = self._live
        allowed = self._tasks.allowed(self.live, self._least, self._most)

        def least(j: int) -> int:
            may = allowed.get(bisect_left(self.live, j))
            if may is None:
                return self._least[j]
            # A job that has no size but none is as if it needed more than there is.
            return int(np.argmax(may[1:])) + 1 if may[1:].any() else nodes + 1

        must = self._turns.must(live, self.held[live], nodes, self.now, least)
        places = frozenset(i for i, j in enumerate(self.live) if j in must) if must else frozenset()
        return SizeBounds(allowed, places) if places or allowed else None

    def _begin_within_limits(self, jobs: Ints, more: Ints) -> bool:
        """Start pilots on nodes that are seen free now, as many as the rules allow at one look; the rest waits.
        Whether any was started."""
        if self._startable is None:
            free = self._less_reserve(self._free())
        else:
            free = self._startable
        free = free[self._freed[free] < self.now]
        began = self._cohorts()
        groups = cohorts(free, began[free]) if self._tasks.several else None
        left = int(min(self.rules.max_pilots - self._pilots(), starts_at_once(self.rules.max_starts)))
        begin = 0
        taken: list[Ints] = []
        for j, wanted in zip(jobs.tolist(), more.tolist(), strict=True):
            if left <= 0:
                self._again_at = self.now + self.options.tick_s
                break
            mine = free[begin : begin + wanted]
            begin += wanted
            if groups is not None:
                own = began[self.owner == j].tolist()
                mine = np.array(take_cohorts(groups, own, wanted, lambda _: ""), dtype=np.int64)
                part = mine[: left * self._tasks.width]
                left -= -(-len(part) // self._tasks.width)
            else:
                part = mine[:left]
                left -= len(part)
            taken.append(part)
            if len(part) < wanted:
                self._again_at = self.now + self.options.tick_s
        counts = np.array([len(part) for part in taken], dtype=np.int64)
        some = counts.nonzero()[0]
        if len(some):
            self._begin(np.concatenate(taken), jobs[some], counts[some])
        return len(some) > 0

    def _cohorts(self) -> Floats:
        """When each node became idle; the daemon tells that apart for wide pilots only."""
        if self._holes is None or self._tasks.width == 1:
            return np.zeros(len(self.state))
        return self._holes.began

    def _decide_by_class(self, classes: ClassesOfNodes) -> None:
        """As `_decide`, with nodes of several classes."""
        live, kinds = self._live, len(classes.names)
        supply = np.array(self._supply())
        for _ in range(min(self.rules.keep_idle, int(supply.sum()))):
            supply[int(np.argmax(supply))] -= 1
        held = np.array(
            [np.bincount(classes.of_node[self.owner == j], minlength=kinds) for j in live.tolist()], dtype=np.int64
        )
        began = perf_counter()
        wanted = self.sizer.by_class(classes, self.live, held, supply.tolist())
        self.log.solve_s.append(perf_counter() - began)
        change = wanted - held
        for i, q in zip(*np.nonzero(change < 0), strict=True):
            j = int(live[i])
            mine = np.flatnonzero((self.owner == j) & (classes.of_node == q))
            self._release(self._oldest(mine, -int(change[i, q])), j, Cause.SHRINK, stall=True)
        for q in range(kinds):
            growing = np.flatnonzero(change[:, q] > 0)
            if len(growing):
                free = self._free()
                self._begin(free[classes.of_node[free] == q], live[growing], change[growing, q])

    def _oldest(self, mine: Ints, count: int) -> Ints:
        """So many of a job's nodes, those whose pilots started first."""
        return mine[np.lexsort((-mine, self.started[mine]))[:count]]

    def _free(self) -> Ints:
        """Idle nodes without a pilot, by name."""
        free: Ints = ((self.state == IDLE) & (self.owner < 0)).nonzero()[0]
        return free

    def _begin(self, free: Ints, jobs: Ints, more: Ints) -> None:
        """Each of `jobs` takes so many more of the free nodes, in turn."""
        ends = np.minimum(np.cumsum(more), len(free))
        more = np.diff(ends, prepend=0)
        nodes = free[: ends[-1]]
        self.owner[nodes] = np.repeat(jobs, more)
        self.warm[nodes] = False
        self.started[nodes] = self.now
        if self.rules.max_nodes > 1:
            self._tasks.begin(nodes, self.owner[nodes])
        self.held[jobs] += more
        self.n_held += len(nodes)
        self.totals.activations += len(nodes)
        begin = 0
        for j, end in zip(jobs.tolist(), ends.tolist(), strict=True):
            if math.isnan(self.first_start[j]):
                self.first_start[j] = self.now
            if self.activate[j] > 0:
                at = self.now + float(self.activate[j])
                heapq.heappush(self._ready, (at, self.totals.activations + begin, j, nodes[begin:end]))
            else:
                self._join(j, nodes[begin:end])
            begin = end
        self._limit(nodes)

"""The worker's connection to the daemon: one thread polls for directives, another reports. Training never waits.

While the daemon is unreachable, both threads retry and training goes on. A restarted daemon rejects the old token;
the link then says hello again and names the world in which this worker trains.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from typing import Protocol

from malletrain.wire import messages
from malletrain.wire.worker_client import DaemonUnreachable, Rejected, TokenUnknown, WorkerClient

log = logging.getLogger("malletrain.elastic")

#: A poll waits this long for a directive (long poll).
POLL_WAIT_S = 20.0
MAX_QUEUED_MESSAGES = 1024
MAX_REPORT_MESSAGES = 128
FIRST_RETRY_S, LAST_RETRY_S = 0.1, 2.0
#: A worker that has finished waits so long for a daemon that is away: for a machine to start again.
END_PATIENCE_S = 600.0


class LinkHandler(Protocol):
    """Callbacks of the link. They run on its threads and, but for `while_away`, must return at once. By default plans
    are left to who polls the link, and no quorum makes one."""

    def on_plan(self, plan: messages.Plan) -> None:
        """Take a plan that is newer than all before."""
        return

    def check_in(self, number: int) -> messages.CheckedIn:
        """Answer the daemon's question `number`: is this worker alive, and where is it?"""

    def standing(self) -> messages.Standing | None:
        """The world in which this worker trains, for a daemon that has lost it; None without one."""

    def on_top_up(self, tasks: int) -> None:
        """Submit `tasks` more held tasks. Called with every directive, mostly with 0."""

    def while_away(self) -> messages.Plan | None:
        """Called while the daemon is unreachable: an urgent plan that a quorum has made, or None. May block for
        seconds."""
        return None


class Directives:
    """The daemon's present directives for this process.

    Attributes:
        plan: the newest plan.
        forgone: plans up to this number are not entered: a daemon was told that this worker is in no world.
        end: why training must stop, once it must.
        leave: why this worker is asked to leave, if it is.
        given_up: whether others train on without this worker: then its script must not save any more.
        hold: whether a script that is started anew for `plan` must wait.
        losses: how many workers of this job have been lost, or have left by no plan, in restart mode.
        fixed: whether the job keeps its size.
        away_since: monotonic time since which the daemon is unreachable; None while it answers.
        changed: notified when `plan` or `end` change.
    """

    def __init__(self, handler: LinkHandler) -> None:
        self._handler = handler
        self.plan: messages.Plan | None = None
        self.forgone = 0
        self.end: str | None = None
        self.leave: str | None = None
        self.given_up = self.hold = self.fixed = False
        self.losses = 0
        self.changed = threading.Condition()
        self.away_since: float | None = None

    def serve(self, handler: LinkHandler) -> None:
        """Ask another handler from now on: the next session of the script has begun."""
        self._handler = handler

    def forgo(self) -> None:
        """A daemon is told that this worker is in no world: enter none of the plans that it has seen so far. Call it
        under the lock under which the caller looks at `forgone` and enters a world."""
        if self.plan is not None:
            self.forgone = max(self.forgone, self.plan.generation)

    def _take(self, plan: messages.Plan) -> None:
        """Make `plan` the present one, unless it is not newer."""
        with self.changed:
            if self.plan is not None and plan.generation <= self.plan.generation:
                return
            self.plan = plan
            self.changed.notify_all()
        self._handler.on_plan(plan)


class Link(Directives):
    """Polls for directives and delivers messages. `last_contact`: monotonic time of the daemon's last answer."""

    def __init__(self, client: WorkerClient, handler: LinkHandler) -> None:
        super().__init__(handler)
        self._client = client
        self.last_contact = time.monotonic()
        self._must_greet = False
        self._warm: messages.Warm | None = None
        self._queue: deque[messages.Message] = deque()
        self._filled = threading.Condition()
        self._sending = 0
        self._closed = threading.Event()
        self._greeting = threading.Lock()
        self._epoch = 0
        self._threads = [
            threading.Thread(target=target, name=f"malletrain-{name}", daemon=True)
            for name, target in (("poll", self._poll), ("report", self._report))
        ]

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stop both threads without waiting for them. Queued messages are lost; see `flush`."""
        self._closed.set()
        with self._filled:
            self._filled.notify_all()

    def say(self, message: messages.Message) -> None:
        """Queue a message. When the queue is full, the oldest samples or metric is dropped first."""
        if isinstance(message, messages.Warm):
            self._warm = message
        with self._filled:
            if len(self._queue) >= MAX_QUEUED_MESSAGES:
                for position, old in enumerate(self._queue):
                    if isinstance(old, messages.Samples | messages.Metric):
                        del self._queue[position]
                        break
                else:
                    self._queue.popleft()
            self._queue.append(message)
            self._filled.notify()

    def flush(self, seconds: float) -> bool:
        """Wait until the queue is delivered; returns False after `seconds`, or when the link is closed."""
        end = time.monotonic() + seconds
        with self._filled:
            while self._queue or self._sending:
                left = end - time.monotonic()
                if left <= 0 or self._closed.is_set():
                    return False
                self._filled.wait(left)
        return True

    def deliver_end(self, unless: threading.Event | None = None) -> bool:
        """Wait until the daemon has taken what is queued, the job's end among it: without that, what was trained last
        is trained again. Returns False after `END_PATIENCE_S`, when `unless` is set, when the link is closed, or when
        the daemon will not have this worker (`end` says why)."""
        end = time.monotonic() + END_PATIENCE_S
        while not self.flush(1.0):
            if self._closed.is_set() or (unless is not None and unless.is_set()) or time.monotonic() > end:
                return False
        return True

    # --- threads --------------------------------------------------------------------------------------------------

    def _poll(self) -> None:
        after, retry, epoch = 0, FIRST_RETRY_S, 0
        while not self._closed.is_set():
            if epoch != self._epoch:
                after, epoch = 0, self._epoch  # a restarted daemon numbers its directives anew
            try:
                if self._must_greet:
                    self._greet(epoch, retry)
                    continue
                directive = self._client.poll(after, POLL_WAIT_S)
                if directive is None:
                    continue
                after, retry = directive.seq, FIRST_RETRY_S
                self._in_contact()
                self._act(directive)
            except TokenUnknown:
                self._greet(epoch, retry)
            except Rejected as error:
                self._stop(str(error))
                return
            except DaemonUnreachable as error:
                log.info("the daemon is away: %s", error)
                self._is_away()
                self._closed.wait(retry)
                retry = min(LAST_RETRY_S, 2 * retry)
            except Exception:
                # A directive of another release must not end the link: the daemon repeats the present state.
                log.exception("a directive could not be processed")
                self._closed.wait(LAST_RETRY_S)

    def _in_contact(self) -> None:
        self.last_contact, self.away_since = time.monotonic(), None

    def _is_away(self) -> None:
        """Let the members form a world without the daemon; `_greet` reports it when the daemon is back. It would be a
        smaller one: a job that keeps its size forms none."""
        self.away_since = self.away_since or time.monotonic()
        plan = None if self.fixed else self._handler.while_away()
        if plan is not None:
            self._must_greet = True
            self._take(plan)

    def _act(self, directive: messages.Directive) -> None:
        if directive.check_in is not None:
            self.say(self._handler.check_in(directive.check_in))
        self._handler.on_top_up(directive.top_up)
        with self.changed:
            self.leave, self.hold, self.given_up = directive.leave, directive.hold, directive.given_up
            self.losses, self.fixed = directive.losses, directive.fixed
            self.end = directive.end or self.end
            self.changed.notify_all()
        if directive.plan is not None:
            self._take(directive.plan)

    def _report(self) -> None:
        retry, epoch = FIRST_RETRY_S, self._epoch
        while True:
            with self._filled:
                while not self._queue and not self._closed.is_set():
                    self._filled.wait()
                if self._closed.is_set():
                    return
                batch = [self._queue.popleft() for _ in range(min(len(self._queue), MAX_REPORT_MESSAGES))]
                self._sending = len(batch)
            try:
                epoch = self._epoch
                self._client.report(batch)
                retry = FIRST_RETRY_S
                self._in_contact()
                batch = []
            except TokenUnknown:
                self._greet(epoch, retry)
            except Rejected as error:
                log.warning("the daemon refused a report: %s", error)
                batch = []
            except DaemonUnreachable:
                self.away_since = self.away_since or time.monotonic()
                self._closed.wait(retry)
                retry = min(LAST_RETRY_S, 2 * retry)
            finally:
                with self._filled:
                    self._queue.extendleft(reversed(batch))
                    self._sending = 0
                    self._filled.notify_all()

    def _greet(self, epoch: int, retry: float) -> None:
        """Say hello again; the two threads do it once between them."""
        with self._greeting:
            if epoch != self._epoch:
                return
            try:
                standing = self._handler.standing()
                self._client.hello(standing)
                if standing is None:
                    with self.changed:
                        self.plan = None  # take none that another daemon has shown
                    self._repeat_warm()
                self._epoch += 1
                self._must_greet = False
                self._in_contact()
                log.info("said hello again: the daemon has restarted, or does not know this world")
            except Rejected as error:
                self._stop(str(error))
                self.close()  # it takes no report either
            except DaemonUnreachable:
                self._is_away()
                self._closed.wait(retry)

    def _repeat_warm(self) -> None:
        """Ask for a seat again: a daemon that has restarted does not have it that this worker is warm."""
        with self._filled:
            if self._warm is not None and self._warm not in self._queue:
                self._queue.appendleft(self._warm)
                self._filled.notify_all()

    def _stop(self, reason: str) -> None:
        with self.changed:
            self.end, self.given_up = self.end or reason, True
            self.changed.notify_all()

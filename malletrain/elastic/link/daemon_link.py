"""The worker's link to the daemon: two threads, one that polls and one that reports. Training never waits for it.

The daemon may be away for as long as it likes: the link keeps trying, training goes on, and when a restarted daemon
does not know the token any more, the link says hello again and tells it which world it finds here.
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

POLL_WAIT_S = 20.0
MAX_QUEUED = 1024
FIRST_RETRY_S, LAST_RETRY_S = 0.1, 2.0


class Answers(Protocol):
    """What the link asks of the runtime, from its own threads; must return at once."""

    def on_plan(self, plan: messages.Plan) -> None:
        """A plan that was not seen before."""
        ...

    def check_in(self, number: int) -> messages.CheckedIn:
        """Where this worker stands."""
        ...

    def standing(self) -> messages.Standing | None:
        """The world this worker trains in, for a daemon that may have forgotten it; None without one."""
        ...

    def on_top_up(self, tasks: int) -> None:
        """So many held tasks more are wanted, or 0; told with every directive."""
        ...

    def while_away(self) -> messages.Plan | None:
        """The daemon does not answer: an urgent plan that the members have made without it, if there is one. May
        block for seconds."""
        ...


class Wanted:
    """What the daemon wants of a process, however it came to hear of it.

    Attributes:
        plan: the newest plan.
        end: the reason to stop, once there is one.
        leave: why this worker is asked to leave, if it is.
        away_since: since when the daemon does not answer (monotonic); None while it does.
        changed: notified when `plan` or `end` change.
    """

    def __init__(self, answers: Answers) -> None:
        self._answers = answers
        self.plan: messages.Plan | None = None
        self.end: str | None = None
        self.leave: str | None = None
        self.changed = threading.Condition()
        self.away_since: float | None = None

    def _take(self, plan: messages.Plan) -> None:
        """A plan was heard; one that is not newer than the last changes nothing."""
        with self.changed:
            if self.plan is not None and plan.generation <= self.plan.generation:
                return
            self.plan = plan
            self.changed.notify_all()
        self._answers.on_plan(plan)


class Link(Wanted):
    """What the daemon wants, and what it is told."""

    def __init__(self, client: WorkerClient, answers: Answers) -> None:
        super().__init__(answers)
        self._client = client
        self.last_contact = time.monotonic()
        self._must_greet = False
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
        """Begin to poll and report."""
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        """Stop both threads soon; what is queued is lost."""
        self._closed.set()
        with self._filled:
            self._filled.notify_all()

    def say(self, message: messages.Message) -> None:
        """Queue a message. Samples and metrics are dropped, oldest first, when the daemon is away for long."""
        with self._filled:
            if len(self._queue) >= MAX_QUEUED:
                for position, old in enumerate(self._queue):
                    if isinstance(old, messages.Samples | messages.Metric):
                        del self._queue[position]
                        break
                else:
                    self._queue.popleft()
            self._queue.append(message)
            self._filled.notify()

    def flush(self, seconds: float) -> bool:
        """Wait until all that was said has been delivered; False when that takes longer than `seconds`."""
        end = time.monotonic() + seconds
        with self._filled:
            while self._queue or self._sending:
                left = end - time.monotonic()
                if left <= 0 or self._closed.is_set():
                    return False
                self._filled.wait(left)
        return True

    # --- threads --------------------------------------------------------------------------------------------------

    def _poll(self) -> None:
        after, retry, epoch = 0, FIRST_RETRY_S, 0
        while not self._closed.is_set():
            if epoch != self._epoch:
                after, epoch = 0, self._epoch  # another daemon counts anew
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
                # A directive that this release cannot read must not end the link; the daemon tells all again.
                log.exception("a directive could not be taken")
                self._closed.wait(LAST_RETRY_S)

    def _in_contact(self) -> None:
        self.last_contact, self.away_since = time.monotonic(), None

    def _is_away(self) -> None:
        """Members may help themselves meanwhile; the daemon is told of their world as soon as it is back."""
        self.away_since = self.away_since or time.monotonic()
        plan = self._answers.while_away()
        if plan is not None:
            self._must_greet = True
            self._take(plan)

    def _act(self, directive: messages.Directive) -> None:
        if directive.check_in is not None:
            self.say(self._answers.check_in(directive.check_in))
        self._answers.on_top_up(directive.top_up)
        with self.changed:
            self.leave = directive.leave
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
                batch = [self._queue.popleft() for _ in range(min(len(self._queue), 128))]
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
        """Say hello again, once for both threads."""
        with self._greeting:
            if epoch != self._epoch:
                return
            try:
                self._client.hello(self._answers.standing())
                self._epoch += 1
                self._must_greet = False
                self._in_contact()
                log.info("said hello again: the daemon has restarted, or does not know this world")
            except Rejected as error:
                self._stop(str(error))
            except DaemonUnreachable:
                self._is_away()
                self._closed.wait(retry)

    def _stop(self, reason: str) -> None:
        with self.changed:
            self.end = self.end or reason
            self.changed.notify_all()

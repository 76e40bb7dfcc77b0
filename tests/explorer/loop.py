"""Virtual time: asyncio loops of simulated processes, which may be stopped and killed."""

import asyncio
import collections
from collections.abc import Callable, Coroutine
import heapq
import itertools
import math
from typing import Any

_Call = tuple[Callable[..., Any], tuple[Any, ...]]
_READ_SECS = 0.002  # To handle one message of those that have come meanwhile, as others wait.


class Clock:
  """What is to happen in all processes, in order; `now` in seconds."""

  def __init__(self) -> None:
    self.now = 0.0
    self.ready: collections.deque[_Call] = collections.deque()
    self.failures: list[BaseException] = []
    self.processes: list[Process] = []  # Kept, so that tasks of killed ones do not run on.
    self._due: list[tuple[float, int, Callable[..., Any], tuple[Any, ...]]] = []
    self._order = itertools.count()

  def at(self, secs: float, call: Callable[..., Any], *args: Any) -> None:
    """Has something happen `secs` from now; what is due at once in order."""
    heapq.heappush(self._due, (self.now + secs, next(self._order), call, args))

  def step(self, until_secs: float = math.inf) -> bool:
    """Lets the next thing happen, to which time jumps; returns whether there is one by then."""
    if self.ready:
      call, args = self.ready.popleft()
    elif self._due and self._due[0][0] <= until_secs:
      due_secs, _, call, args = heapq.heappop(self._due)
      self.now = max(self.now, due_secs)  # A test may have set it.
    else:
      return False
    call(*args)
    if self.failures:
      raise self.failures.pop()
    return True

  def run(self, until_secs: float) -> None:
    """Lets time pass up to an instant."""
    while self.step(until_secs):
      pass
    self.now = max(self.now, until_secs)

  def run_for(self, secs: float) -> None:
    """Lets some time pass."""
    self.run(self.now + secs)


class Process(asyncio.BaseEventLoop):
  """A process: the loop of its tasks, with a clock of its own.

  Attributes:
    is_stopped: By SIGSTOP. What others send it waits; then it reads that before it sees
      which of its timers are due.
  """

  def __init__(self, clock: Clock, *, ahead_secs: float = 0.0) -> None:
    super().__init__()
    self.is_stopped = self.is_killed = False
    self._clock, self._ahead_secs = clock, ahead_secs
    self._inbox: collections.deque[_Call] = collections.deque()
    self._held: list[asyncio.Handle] = []
    self._tasks: set[asyncio.Task[Any]] = set()
    clock.processes.append(self)

  def start(self, work: Callable[..., Coroutine[Any, Any, None]], *args: Any) -> asyncio.Task[None]:
    """Starts a task whose failure is one of the simulation."""

    async def run() -> None:
      try:
        await work(*args)
      except Exception as error:
        self._clock.failures.append(error)

    return self.create_task(run())

  def tell(self, call: Callable[..., Any], *args: Any) -> None:
    """Something reaches it from outside, once who runs now is done."""
    self._clock.ready.append((self.take, (call, *args)))

  def take(self, call: Callable[..., Any], *args: Any) -> None:
    """Something reaches it from outside at once; nobody else must run."""
    if self.is_stopped or self._inbox:
      self._inbox.append((call, args))
    else:
      self._call(call, *args)

  def kill(self) -> None:
    """It does nothing any more."""
    self.is_killed = True

  def close(self) -> None:
    """Ends all tasks; what they do then has no effect."""
    self.is_killed = True
    for task in self._tasks:
      task.get_coro().close()

  def cont(self) -> None:
    """It runs again after it was stopped."""
    self.is_stopped = False
    self._clock.ready += ((self._run_held, ()), (self._catch_up, ()))

  def _run_held(self) -> None:
    held, self._held = self._held, []
    for handle in held:
      self._run(handle)

  def _catch_up(self) -> None:
    if self._inbox and not self.is_stopped:
      call, args = self._inbox.popleft()
      self._call(call, *args)
      self._clock.at(_READ_SECS, self._catch_up)
    else:
      self._run_held()

  def _run(self, handle: asyncio.Handle) -> None:
    if self.is_stopped or self._inbox and isinstance(handle, asyncio.TimerHandle):
      self._held.append(handle)
    elif not handle.cancelled():
      self._call(handle._run)

  def _call(self, call: Callable[..., Any], *args: Any) -> None:
    if not self.is_killed:
      asyncio._set_running_loop(self)
      try:
        call(*args)
      finally:
        asyncio._set_running_loop(None)

  # As a loop.

  def time(self) -> float:
    return self._clock.now + self._ahead_secs

  def call_soon(self, call: Any, *args: Any, context: Any = None) -> asyncio.Handle:
    handle = asyncio.Handle(call, args, self, context)
    self._clock.ready.append((self._run, (handle,)))
    return handle

  def call_later(
      self, secs: float, call: Any, *args: Any, context: Any = None
  ) -> asyncio.TimerHandle:
    handle = asyncio.TimerHandle(self.time() + secs, call, args, self, context)
    self._clock.at(secs, self._run, handle)
    return handle

  def call_at(self, when: float, call: Any, *args: Any, context: Any = None) -> asyncio.TimerHandle:
    return self.call_later(max(0.0, when - self.time()), call, *args, context=context)

  def create_task(self, work: Coroutine[Any, Any, Any], **given: Any) -> asyncio.Task[Any]:
    task: asyncio.Task[Any] = super().create_task(work, **given)
    self._tasks.add(task)
    task.add_done_callback(self._tasks.discard)
    return task

  def call_exception_handler(self, context: dict[str, Any]) -> None:
    # Tasks of killed processes have no exception.
    self._clock.failures += filter(None, [context.get("exception")])

  def __del__(self, *unused: Any) -> None:
    """There is nothing to close."""


def settle(future: asyncio.Future[Any], result: Any, error: BaseException | None = None) -> None:
  """Sets the result of a future, or its error, if somebody waits for it still."""
  if not future.done():
    if error is None:
      future.set_result(result)
    else:
      future.set_exception(error)

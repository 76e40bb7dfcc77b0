"""Virtual time: asyncio loops of simulated processes, which may be stopped and killed.

Code that blocks runs in greenlets: `wait` yields to others, as a waiting thread does.
"""

import asyncio
import collections
from collections.abc import Awaitable, Callable, Coroutine
import contextlib
import heapq
import itertools
import random
from typing import Any

import greenlet

_READ_SECS = 0.002  # Handling one of the messages that arrived during a stop.


class _Call:
  """A scheduled call, of a process or of the simulation itself; as `asyncio.Handle`."""

  __slots__ = ("process", "call", "args", "is_timer", "is_cancelled")

  def __init__(
      self,
      process: "Process | None",
      call: Callable[..., Any],
      args: tuple[Any, ...],
      is_timer: bool = False,
  ) -> None:
    self.process, self.call, self.args, self.is_timer = process, call, args, is_timer
    self.is_cancelled = False

  def cancel(self) -> None:
    self.is_cancelled = True

  def run(self) -> None:
    process = self.process
    if process is None:
      self.call(*self.args)
    elif process.is_stopped or self.is_timer and process.inbox:
      process.held.append(self)
    elif not self.is_cancelled and not process.is_killed:
      asyncio._set_running_loop(process)
      self.call(*self.args)


class Clock:
  """The scheduled calls of all processes, by time; `now` in seconds, `random` for all draws."""

  def __init__(self, seed: int = 0) -> None:
    self.now, self.random = 0.0, random.Random(seed)
    self.ready: collections.deque[_Call] = collections.deque()
    self.failures: list[BaseException] = []
    self.processes: list[Process] = []  # Kept, so that tasks of killed ones do not run on.
    self._due: list[tuple[float, int, _Call]] = []
    self._order = itertools.count()

  def at(self, secs: float, call: Callable[..., Any], *args: Any) -> None:
    """Schedules a call `secs` from now; calls due at the same time keep their order."""
    self.put(self.now + secs, _Call(None, call, args))

  def put(self, due_secs: float, call: _Call) -> None:
    heapq.heappush(self._due, (due_secs, next(self._order), call))

  def soon(self, call: Callable[..., Any], *args: Any) -> None:
    """Schedules a call right after the present one."""
    self.ready.append(_Call(None, call, args))

  def run(self, until_secs: float, until: Callable[[], bool] | None = None) -> None:
    """Runs the calls up to an instant, or until a condition holds."""
    ready, due, failures = self.ready, self._due, self.failures
    try:
      while until is None or not until():
        if ready:
          call = ready.popleft()
        elif due and due[0][0] <= until_secs:
          due_secs, _, call = heapq.heappop(due)
          if due_secs > self.now:  # A test may have set it.
            self.now = due_secs
        else:
          self.now = max(self.now, until_secs)
          return
        call.run()
        if failures:
          raise failures.pop()
    finally:
      asyncio._set_running_loop(None)

  def run_for(self, secs: float) -> None:
    """Runs the calls of the next seconds."""
    self.run(self.now + secs)


class Process(asyncio.AbstractEventLoop):
  """A process: the loop of its tasks, with a clock of its own.

  Attributes:
    is_stopped: By SIGSTOP. Messages for it wait in its `inbox`, by connection; once continued
      it reads them before it runs its own calls, which are in `held`.
  """

  def __init__(self, clock: Clock, *, ahead_secs: float = 0.0) -> None:
    self.is_stopped = self.is_killed = False
    self.inbox: dict[Any, collections.deque[tuple[Callable[..., Any], tuple[Any, ...]]]] = {}
    self.held: list[_Call] = []
    self._clock, self._ahead_secs = clock, ahead_secs
    self._tasks: list[asyncio.Task[Any]] = []  # A loop keeps none that only wait.
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
    """Delivers a call from outside right after the present one."""
    self._clock.soon(self.take, call, *args)

  def take(self, call: Callable[..., Any], *args: Any, by: Any = None) -> None:
    """Delivers a call from outside at once, over connection `by`; no process may be running."""
    if self.is_stopped or self.inbox:
      self.inbox.setdefault(by, collections.deque()).append((call, args))
    elif not self.is_killed:
      asyncio._set_running_loop(self)
      call(*args)

  def kill(self) -> None:
    """Ends it: none of its calls runs any more."""
    self.is_killed = True

  def close(self) -> None:
    """Ends it and closes its tasks, whose cleanup has no effect."""
    self.is_killed = True
    for task in self._tasks:
      task.get_coro().close()

  def cont(self) -> None:
    """Continues it after a stop."""
    self.is_stopped = False
    self._clock.soon(self._run_held)
    self._clock.soon(self._catch_up)

  def _run_held(self) -> None:
    held, self.held = self.held, []
    for call in held:
      call.run()

  def _catch_up(self) -> None:
    if self.is_killed or self.is_stopped:
      return
    if self.inbox:
      by = self._clock.random.choice([*self.inbox])
      call, args = self.inbox[by].popleft()
      if not self.inbox[by]:
        del self.inbox[by]
      asyncio._set_running_loop(self)
      call(*args)
      self._clock.at(_READ_SECS, self._catch_up)
    else:
      self._run_held()

  # As a loop. Contexts are left out: all share one.

  get_debug = bool  # False, and fast: each future asks.

  def time(self) -> float:
    return self._clock.now + self._ahead_secs

  def call_soon(self, call: Any, *args: Any, context: Any = None) -> Any:
    handle = _Call(self, call, args)
    self._clock.ready.append(handle)
    return handle

  def call_later(self, secs: float, call: Any, *args: Any, context: Any = None) -> Any:
    handle = _Call(self, call, args, is_timer=True)
    self._clock.put(self._clock.now + secs, handle)
    return handle

  def call_at(self, when: float, call: Any, *args: Any, context: Any = None) -> Any:
    return self.call_later(max(0.0, when - self.time()), call, *args)

  def create_future(self) -> asyncio.Future[Any]:
    return asyncio.Future(loop=self)

  def create_task(self, work: Any, **given: Any) -> asyncio.Task[Any]:
    task = asyncio.Task(work, loop=self, **given)
    self._tasks.append(task)
    return task

  def call_exception_handler(self, context: dict[str, Any]) -> None:
    # Tasks of killed processes have no exception.
    self._clock.failures += filter(None, [context.get("exception")])


def settle(future: asyncio.Future[Any], result: Any, error: BaseException | None = None) -> None:
  """Sets the result or the error of a future, unless it has one."""
  if not future.done():
    if error is None:
      future.set_result(result)
    else:
      future.set_exception(error)


async def call(function: Callable[..., Any], *args: Any) -> Any:
  """Runs a function that blocks by `wait`; returns its result."""
  thread = greenlet.greenlet(function)
  found = thread.switch(*args)
  while not thread.dead:
    try:
      answer = await found
    except BaseException as error:  # Also that of a task which is closed.
      found = thread.throw(error)
    else:
      found = thread.switch(answer)
  return found


def wait(awaitable: Awaitable[Any]) -> Any:
  """Blocks the function that `call` runs until `awaitable` is done; returns its result."""
  return greenlet.getcurrent().parent.switch(awaitable)


class Condition(contextlib.nullcontext[None]):
  """As `threading.Condition`, in a process in which one call at a time waits."""

  def __init__(self, process: Process) -> None:
    super().__init__()
    self._process, self._find, self._found = process, bool, process.create_future()

  def notify_all(self) -> None:
    if found := self._find():
      settle(self._found, found)

  def wait_for(self, find: Callable[[], Any], timeout_secs: float | None = None) -> Any:
    self._find, self._found = find, self._process.create_future()
    self.notify_all()
    if timeout_secs is not None:
      self._process.call_later(timeout_secs, settle, self._found, False)
    return wait(self._found)

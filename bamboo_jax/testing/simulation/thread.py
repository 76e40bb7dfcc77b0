"""Code that blocks, in a thread that is given the baton in virtual time."""

from collections.abc import Callable
import threading

# A condition, and the seconds after which the wait is over in any case.
Wanted = tuple[Callable[[], bool], float | None]


class Thread:
  """Sequential code as a generator: `send` runs it up to its next wait."""

  def __init__(self, work: Callable[[], None]) -> None:
    self._work = work
    self._turn, self._back = threading.Semaphore(0), threading.Semaphore(0)
    self._is_killed = self._is_done = False
    self._error: BaseException | None = None
    self._thread = threading.Thread(target=self._run, daemon=True)
    self._thread.start()

  def send(self, held: bool | None) -> Wanted:
    """Returns what is waited for next; raises as a generator does."""
    self._held = held
    self._turn.release()
    self._back.acquire()
    if self._is_done:
      raise self._error or StopIteration
    return self._wanted

  def wait(
      self, condition: Callable[[], bool], secs: float | None
  ) -> bool | None:
    """Waits, in the thread; returns whether the condition holds."""
    self._wanted = condition, secs
    self._back.release()
    self._take_turn()
    return self._held

  def kill(self) -> None:
    """Ends the thread in its wait; returns once it has ended."""
    if not self._is_done:
      self._is_killed = True
      self._turn.release()
      self._thread.join()

  def _take_turn(self) -> None:
    self._turn.acquire()
    if self._is_killed:
      raise _KilledError

  def _run(self) -> None:
    try:
      self._take_turn()
      self._work()
    except BaseException as error:
      self._error = error
    self._is_done = True
    self._back.release()


class _KilledError(BaseException):
  """The process has been killed."""

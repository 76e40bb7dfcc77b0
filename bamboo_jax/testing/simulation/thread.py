"""Code that blocks, in a thread that is given the baton in virtual time."""

import threading


class Thread:
  """Sequential code as a generator: `send` runs it up to its next wait."""

  def __init__(self, work):
    self._work = work
    self._turn, self._back = threading.Semaphore(0), threading.Semaphore(0)
    self._is_killed = self._is_done = False
    self._error = None
    self._thread = threading.Thread(target=self._run, daemon=True)
    self._thread.start()

  def send(self, held):
    """Returns what is waited for next; raises as a generator does."""
    self._held = held
    self._turn.release()
    self._back.acquire()
    if self._is_done:
      raise self._error or StopIteration
    return self._wanted

  def wait(self, condition, secs):
    """Waits, in the thread; returns whether the condition holds."""
    self._wanted = condition, secs
    self._back.release()
    self._take_turn()
    return self._held

  def kill(self):
    if not self._is_done:
      self._is_killed = True
      self._turn.release()
      self._thread.join()

  def _take_turn(self):
    self._turn.acquire()
    if self._is_killed:
      raise _KilledError

  def _run(self):
    try:
      self._take_turn()
      self._work()
    except BaseException as error:
      self._error = error
    self._is_done = True
    self._back.release()


class _KilledError(BaseException):
  """The process has been killed."""

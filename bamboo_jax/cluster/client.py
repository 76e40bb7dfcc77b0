"""The worker's end of the socket to its agent.

A thread reads, so that a new view is known while the worker computes or waits
for a transfer. A wait for posts ends early if a newer view lacks a member. A
process that was stopped for a while asks its agent whether it is still a member
before it believes posts. What is said and when is decided in `client_state`.
"""

from collections.abc import Callable
import os
import socket
import threading
import time
from typing import Any

from bamboo_jax.cluster import client_state
from bamboo_jax.cluster import frames
from bamboo_jax.cluster import messages
from bamboo_jax.cluster import settle
from bamboo_jax.cluster import views
from bamboo_jax.cluster.sessions import eras as eras_lib


class Client:
  """Talks to the agent of node `number`; methods are those of `ClientState`."""

  def __init__(
      self,
      sock: socket.socket,
      *,
      number: int,
      on_lost: Callable[[views.View], Any],
      begun: Callable[[], settle.Begun],
      heartbeat_secs: float = 0.1,
  ) -> None:
    """Starts to read from a socket that is connected to the agent.

    Args:
      on_lost: Called at once, in the thread that reads; see `ClientState`.
      begun: See `ClientState`.
    """
    self.number = number
    self._sock = sock
    self._heartbeat_secs = heartbeat_secs
    self._arrived: dict[int, float] = {}
    self._changed = threading.Condition()
    self._writing = threading.Lock()
    self._state = client_state.ClientState(
        number,
        send=lambda message: self._write(messages.encode(message)),
        on_lost=on_lost,
        begun=begun,
        now=lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
        heartbeat_secs=heartbeat_secs,
    )
    for work in (self._read, self._beat):
      threading.Thread(target=work, name="agent", daemon=True).start()

  @property
  def adopted(self) -> views.View:
    """The view that this worker works in."""
    return self._state.adopted

  @property
  def newest(self) -> views.View:
    """The newest view that is known, adopted or not."""
    with self._changed:
      return self._state.newest

  @property
  def is_interrupted(self) -> bool:
    """Whether a newer view lacks a member of the adopted one."""
    with self._changed:
      return self._state.is_interrupted

  def note_progress(self) -> None:
    """Reports progress, with the next heartbeat."""
    self._state.note_progress()

  def send(self, kind: str, **values: Any) -> None:
    """Sends a message to the agent."""
    self._write(frames.encode({"kind": kind, **values}))

  def post(self, view: int, key: str, value: Any) -> None:
    """Posts a value for all members of a view; each key once."""
    with self._changed:
      self._state.post(view, key, value)

  def gather(self, key: str, value: Any) -> dict[int, Any]:
    """Posts a value; returns those of all members of the adopted view.

    Raises `base.ViewChangedError` if a member is gone.
    """
    self.post(self.adopted.number, key, value)
    return self.collect(key)

  def collect(self, key: str) -> dict[int, Any]:
    """Returns the values of all members, by number; raises as `gather`."""
    return self._wait(self._state.collect(key))

  def wait_interrupt(self, timeout_secs: float | None) -> views.View | None:
    """Returns the next view once it lacks a member; None after the timeout."""
    return self._wait_on_purpose(self._state.wait_interrupt(timeout_secs))

  def wait_members(self, count: int) -> None:
    """Waits until the newest view has `count` members; raises as `gather`."""
    self._wait_on_purpose(self._state.wait_members(count))

  def wait_first(self) -> views.View:
    """Returns the first view that has this node; waits for it."""
    return self._wait_on_purpose(self._state.wait_first())

  def adopt(self, view: views.View) -> None:
    """Works in a view from now on."""
    with self._changed:
      self._state.adopt(view)
      for number in [n for n in self._arrived if n < view.number]:
        del self._arrived[number]
      self._changed.notify_all()

  def find_view(self, number: int) -> views.View:
    """Returns a view by its number; waits for it if it must be on its way."""
    return self._wait(self._state.find_view(number))

  def arrived_secs(self, number: int) -> float:
    """Returns the time at which a view came, on `time.perf_counter`."""
    return self._arrived[number]

  def wait_era(self, number: int | None = None) -> eras_lib.Era:
    """Returns an era by its number, by default the newest; waits for it."""
    return self._wait_on_purpose(self._state.wait_era(number))

  def wait_facts(self) -> Any:
    """Returns the members' facts about the run; waits for them."""
    return self._wait_on_purpose(self._state.wait_facts())

  def _wait_on_purpose(self, wait: client_state.Wait) -> Any:
    is_main = threading.current_thread() is threading.main_thread()
    return self._wait(self._state.on_purpose(wait) if is_main else wait)

  def _wait(self, wait: client_state.Wait) -> Any:
    with self._changed:
      held = None
      while True:
        try:
          condition, timeout_secs = wait.send(held)
        except StopIteration as end:
          return end.value
        held = self._changed.wait_for(condition, timeout_secs)

  def _beat(self) -> None:
    while True:
      with self._changed:
        self._state.beat()
      time.sleep(self._heartbeat_secs)

  def _read(self) -> None:
    decoder = frames.Decoder()
    while data := self._sock.recv(1 << 16):
      for content in decoder.feed(data):
        message = messages.parse(content, messages.TO_WORKER)
        with self._changed:
          if isinstance(message, messages.NewView):
            self._arrived[message.view.number] = time.perf_counter()
          self._state.hear(message)
          self._changed.notify_all()
    os._exit(1)  # Without an agent there is no cluster.

  def _write(self, data: bytes) -> None:
    with self._writing:
      self._sock.sendall(data)

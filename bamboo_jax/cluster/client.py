"""The worker's end of the socket to its agent.

A thread reads, so that a new view interrupts the worker while it computes or
waits for a value. A wait for posts ends early if a newer view lacks a member. A
process that was suspended asks its agent whether it is still a member before it
believes posts. Decisions are in `client_state`.
"""

from collections.abc import Callable
import functools
import os
import socket
import threading
import time
from typing import Any

from absl import logging

from bamboo_jax import base
from bamboo_jax.base import logs
from bamboo_jax.cluster import client_state, frames, messages, views
from bamboo_jax.schedule import channel as channel_lib

_NUM_OLD = 8  # Views whose times are kept.


def _blocking(
    wait: Callable[..., client_state.Wait], on_purpose: bool = False
) -> Callable[..., Any]:
  """Returns a method that blocks until a wait of `ClientState` is over."""

  @functools.wraps(wait)
  def block(self: "Client", *args: Any) -> Any:
    run = self._wait_on_purpose if on_purpose else self._wait
    return run(wait(self._state, *args))

  return block


class Client:
  """Talks to the agent of node `number`; methods are those of `ClientState`."""

  def __init__(
      self,
      sock: socket.socket,
      *,
      number: base.NodeId,
      on_lost: Callable[[views.View], Any],
      begun: Callable[[], channel_lib.Begun],
      heartbeat_secs: float = 0.1,
      silence_secs: float = 3.0,
  ) -> None:
    """Starts to read from a socket that is connected to the agent.

    `on_lost` is called at once, in the thread that reads; see `ClientState` for
    it and what follows.
    """
    self.number = number
    self._sock = sock
    self._heartbeat_secs = heartbeat_secs
    self._arrived: dict[base.ViewId, float] = {}
    self._silent: dict[base.ViewId, dict[base.NodeId, float]] = {}
    self._changed = threading.Condition()
    self._writing = threading.Lock()
    self._state = client_state.ClientState(
        number,
        send=self.send,
        on_lost=on_lost,
        begun=begun,
        now=lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
        heartbeat_secs=heartbeat_secs,
        silence_secs=silence_secs,
    )
    for work in (self._read, self._beat):
      threading.Thread(target=work, name="agent", daemon=True).start()

  @property
  def adopted(self) -> views.View:
    return self._state.adopted

  @property
  def newest(self) -> views.View:
    """The newest view that is known, adopted or not."""
    with self._changed:
      return self._state.newest

  def note_progress(self) -> None:
    self._state.note_progress()

  def send(self, message: Any) -> None:
    with self._writing:
      self._sock.sendall(messages.encode(message))

  def post(self, view: base.ViewId, key: str, value: Any) -> None:
    with self._changed:
      self._state.post(view, key, value)

  def gather(self, key: str, value: Any) -> dict[base.NodeId, Any]:
    """Posts a value; returns those of all members of the adopted view.

    Raises `base.ViewChangedError` if a member is gone.
    """
    self.post(self.adopted.number, key, value)
    found: dict[base.NodeId, Any] = self.collect(key)
    return found

  collect = _blocking(client_state.ClientState.collect)
  find_view = _blocking(client_state.ClientState.find_view)
  wait_interrupt = _blocking(client_state.ClientState.wait_interrupt, on_purpose=True)
  wait_members = _blocking(client_state.ClientState.wait_members, on_purpose=True)
  wait_first = _blocking(client_state.ClientState.wait_first, on_purpose=True)
  wait_facts = _blocking(client_state.ClientState.wait_facts, on_purpose=True)

  def adopt(self, view: views.View) -> None:
    """Makes `view` the one that this worker works in."""
    with self._changed:
      self._state.adopt(view)
      for number in [n for n in self._arrived if n < view.number - _NUM_OLD]:
        del self._arrived[number]
        self._silent.pop(number, None)
      self._changed.notify_all()

  def arrived_secs(self, number: base.ViewId) -> float:
    """Returns when a view arrived, on `time.perf_counter`."""
    return self._arrived[number]

  def silent_secs(self, number: base.ViewId) -> dict[base.NodeId, float]:
    """Returns how long lost nodes had been silent when a view arrived.

    Includes nodes lost in the last few views before it, which may have been
    superseded before they had an effect.
    """
    with self._changed:
      return {
          node: secs + self._arrived[number] - self._arrived[view]
          for view, silent in sorted(self._silent.items())
          for node, secs in silent.items()
          if view <= number
      }

  def _wait_on_purpose(self, wait: client_state.Wait) -> Any:
    is_main = threading.current_thread() is threading.main_thread()
    return self._wait(self._state.on_purpose(wait) if is_main else wait)

  def _wait(self, wait: client_state.Wait) -> Any:
    with self._changed:
      held: bool | None = None
      while True:
        try:
          condition, timeout_secs = wait.send(held)
        except StopIteration as end:
          return end.value
        held = self._changed.wait_for(condition, timeout_secs)

  def _beat(self) -> None:
    while True:
      with self._changed:
        self._state.step = base.StepId(logs.last_step())
        self._state.beat()
      time.sleep(self._heartbeat_secs)

  def _read(self) -> None:
    try:
      self._hear()
    except Exception:  # It must not continue without hearing its agent.
      logging.exception("The connection to the agent has failed.")
    os._exit(1)  # Without an agent there is no cluster.

  def _hear(self) -> None:
    decoder = frames.Decoder()
    while data := self._sock.recv(1 << 16):
      for content in decoder.feed(data):
        message = messages.parse(content, messages.TO_WORKER)
        with self._changed:
          if isinstance(message, messages.NewView):
            self._arrived[message.view.number] = time.perf_counter()
            self._silent[message.view.number] = message.silent
          self._state.hear(message)
          self._changed.notify_all()

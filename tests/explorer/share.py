"""A folder that hosts share: what is in it, and what goes wrong with it.

      host                     share
       |-- 1 call arrives ------>|   unless the host's mount hangs
       |                         |   2 it takes effect; one may be late
       |<- 3 answer arrives -----|   an error also after the effect

The calls are those of `fence.FenceFolder`; in which order they are made, and
what is concluded from them, the real `fence.FenceProtocol` says.
"""

from collections.abc import Callable
import json
import random
from typing import Any

from bamboo_jax import base
from bamboo_jax.cluster import views
from bamboo_jax.cluster.store import fence as fence_lib
from tests.explorer import clock as clock_lib

_CALL_SECS = (0.0005, 0.002)  # One way.
_UNREADABLE = "?"  # Content of a file that cannot be read.
_GARBAGE = ("", '{"number": 3, "mem', _UNREADABLE, "\0" * 40)


class SharedFiles:
  """As much of `fence.FenceFolder` as is needed, in memory.

  Attributes:
    num_torn: How many of the files to be created get other content.
  """

  def __init__(self) -> None:
    self.num_torn = 0
    self._files: dict[str, fence_lib.File] = {}
    self._num_changes = 0

  def read(self, name: str) -> fence_lib.File | None:
    """See `fence.FenceFolder`."""
    if (file := self._files.get(name)) and file.text == _UNREADABLE:
      raise OSError("Input/output error")
    return file

  def create(self, name: str, text: str) -> None:
    """See `fence.FenceFolder`."""
    if name not in self._files:
      if self.num_torn and name.startswith("views/"):
        self.num_torn -= 1
        text = _GARBAGE[len(self._files) % len(_GARBAGE)]
      self.replace(name, text)

  def replace(self, name: str, text: str) -> None:
    """See `fence.FenceFolder`."""
    self._num_changes += 1
    self._files[name] = fence_lib.File(text, self._num_changes)

  def lives(self) -> list[tuple[str, int]]:
    """Returns stamp and epoch of the lives that have begun."""
    found = []
    for name, (text, _) in self._files.items():
      stamp, dot, _ = name.removeprefix("views/").partition(".lives.")
      if dot and text.endswith("}"):
        found.append((stamp, json.loads(text)["epoch"]))
    return found

  def touch(self, name: str) -> None:
    """See `fence.FenceFolder`."""
    if name not in self._files:
      raise FileNotFoundError(f"There is no {name}.")
    self.replace(name, self._files[name][0])

  def copy(self) -> "SharedFiles":
    """Returns files with the same content."""
    other = SharedFiles()
    other._files = dict(self._files)
    return other


class SimulatedFence(fence_lib.Fence):
  """The real fence of files in memory; errors and waits are those of a host."""

  def __init__(self, folder: Any, now: Callable[[], float] = lambda: 0.0) -> None:
    self.folder = folder
    self.protocol = fence_lib.FenceProtocol("workdir", now)


class Share:
  """The folder as hosts see it."""

  def __init__(self, clock: clock_lib.SimulatedClock, rng: random.Random) -> None:
    self.files = SharedFiles()
    self.clock = clock
    self._random = rng
    self._hung: dict[str, float] = {}  # Until when.
    self._late_secs: dict[str, float] = {}  # Of the next that is created.
    self._stale: dict[str, tuple[float, SharedFiles]] = {}
    self._failing: dict[str, float] = {}

  def hang(self, host: str, secs: float) -> None:
    """Calls of a host get no further for a while."""
    self._hung[host] = max(self._hung.get(host, 0.0), self.clock.now + secs)

  def be_late(self, host: str, secs: float) -> None:
    """The next file that a host creates is there later."""
    self._late_secs[host] = secs

  def be_stale(self, host: str, secs: float) -> None:
    """A host reads what there is now, for a while."""
    self._stale[host] = self.clock.now + secs, self.files.copy()

  def fail(self, host: str, secs: float) -> None:
    """Calls of a host fail for a while, half of them after they took effect."""
    self._failing[host] = self.clock.now + secs

  def lives(self) -> list[tuple[str, int]]:
    """See `SharedFiles`."""
    return self.files.lives()

  def hung_secs(self, host: str) -> float:
    """Returns how long calls of a host get no further."""
    return max(0.0, self._hung.get(host, 0.0) - self.clock.now)

  def at_once(self, host: str) -> SimulatedFence:
    """Returns the fence for a worker, whose calls take no time.

    They fail as those of its host, and wait nowhere: see `hung_secs`.
    """
    return SimulatedFence(_Mount(self, host), lambda: self.clock.now)

  def find_view(self, stamp: str, number: int) -> views.View | None:
    """Returns the view that the folder has."""
    fence = SimulatedFence(self.files.copy())
    try:
      found = fence.protocol._read_view(stamp, base.ViewId(number))
      view: views.View | None = fence_lib.run(found, fence.folder)
    except OSError:  # It is damaged, and not given up yet.
      return None
    return view

  def ask(
      self, host: str, call: tuple[str, ...], then: Callable[[Any, OSError | None], None]
  ) -> None:
    """Makes a call of `SharedFiles`; `then` gets the answer, or an error."""
    self._later(self._arrive, host, call, then)

  def _later(self, do: Callable[..., None], *args: Any) -> None:
    self.clock.at(self._random.uniform(*_CALL_SECS), do, *args)

  def _arrive(self, host: str, call: tuple[str, ...], then: Any) -> None:
    if secs := self.hung_secs(host):
      self.clock.at(secs, self._arrive, host, call, then)
    elif call[0] == "create" and host in self._late_secs:
      secs = self._late_secs.pop(host)
      self.clock.at(secs, self._take_effect, host, call, then)
    else:
      self._later(self._take_effect, host, call, then)

  def _take_effect(self, host: str, call: tuple[str, ...], then: Any) -> None:
    answer = error = None
    try:
      answer = self.call(host, call)
    except OSError as failure:
      error = failure
    self._later(self._answer, host, then, answer, error)

  def _answer(self, host: str, then: Any, answer: Any, error: Any) -> None:
    if secs := self.hung_secs(host):
      self.clock.at(secs, self._answer, host, then, answer, error)
    else:
      then(answer, error)

  def call(self, host: str, call: tuple[str, ...]) -> Any:
    """Returns the answer to a call, or raises `OSError`."""
    method, *args = call
    files = self.files
    is_failing = self.clock.now < self._failing.get(host, 0.0)
    if is_failing and self._random.random() < 0.5:
      raise OSError("Input/output error before the call took effect")
    until_secs, former = self._stale.get(host, (0.0, files))
    if method == "read" and self.clock.now < until_secs:
      files = former
    answer = getattr(files, method)(*args)
    if is_failing:
      raise OSError("Input/output error after the call took effect")
    return answer


class _Mount:
  """The share as one host sees it, without time."""

  def __init__(self, share: Share, host: str) -> None:
    self._share, self._host = share, host

  def read(self, name: str) -> Any:
    return self._share.call(self._host, ("read", name))

  def create(self, name: str, text: str) -> None:
    self._share.call(self._host, ("create", name, text))

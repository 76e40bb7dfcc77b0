"""The place of the records that hosts share, and the faults on the way to it.

      host                     place
       |-- 1 call arrives ------>|   not while the way hangs; or never: an error later
       |                         |   2 it takes effect; a make may be very late
       |<-- 3 answer arrives ----|   or an error, though it took effect

The calls are those of `records.Folder`; the real `records.Records` makes them.
"""

import asyncio
from collections.abc import Callable, Iterator
import contextlib
import functools
from typing import Any

from bamboo_jax.cluster import records as records_lib, views
from tests.explorer import loop as loop_lib

_CALL_SECS, _SLOW_SECS = (0.0005, 0.005), (0.2, 1.5)  # One way.
_TIMEOUT_SECS = 3.0  # As of `records.Bucket`.
_READS = ("read", "keys")
# Troubles of a host: calls hang, take longer, read the contents of the time when this began; half
# of them fail (half of these after their effect); writes fail; all calls fail.
TROUBLES = ("hang_judge", "slow_judge", "stale", "judge_errors", "full", "cut_off")


class Memory:
  """Records in memory; calls are those of `records.Folder`."""

  def __init__(self) -> None:
    self.values: dict[str, bytes] = {}

  def create(self, key: str, content: bytes) -> None:
    self.values.setdefault(key, content)

  def put(self, key: str, content: bytes) -> None:
    self.values[key] = content

  def read(self, key: str) -> bytes | None:
    return self.values.get(key)

  def keys(self, prefix: str) -> list[str]:
    return sorted(key for key in self.values if key.startswith(f"{prefix}/"))

  def delete(self, key: str) -> None:
    self.values.pop(key, None)


class Place(Memory):
  """A place with records, as hosts reach it.

  Attributes:
    until_secs: End of a trouble of a host.
    late: Delay of the next record that a host makes, and whether its call times out meanwhile.
    records: Its records, whose calls take effect at once.
    values: Contents by key; one that begins with "?" cannot be read.
    num_torn: Number of the next views that cannot be read.
    ignores_conditions: Whether a record that is made replaces an existing one.
    on_made: Called with each view that is made.
  """

  def __init__(self, clock: loop_lib.Clock, on_made: Callable[[views.View], None]) -> None:
    super().__init__()
    self.records = records_lib.Records("judge", b"key")
    self.records._place = self
    self.until_secs: dict[tuple[str, str], float] = {}
    self.late: dict[str, tuple[float, bool]] = {}
    self.num_torn, self.ignores_conditions = 0, False
    self._clock, self._on_made = clock, on_made
    self._former: dict[str, dict[str, bytes]] = {}  # What hosts read during "stale".

  def suffer(self, what: str, host: str, secs: float) -> None:
    """A host has one of the troubles for some seconds."""
    self.until_secs[what, host] = self._clock.now + max(secs, self.left_secs(what, host))
    if what == "stale":
      self._former[host] = dict(self.values)

  def left_secs(self, what: str, host: str) -> float:
    """Returns how many seconds of a trouble are left."""
    return max(0.0, self.until_secs.get((what, host), 0.0) - self._clock.now)

  @contextlib.contextmanager
  def tear(self) -> Iterator[None]:
    """Until this ends the next view that is made cannot be read."""
    self.num_torn += 1
    yield
    self.num_torn = 0
    self.values = {key: value.removeprefix(b"?") for key, value in self.values.items()}

  def find_view(self, number: int) -> views.View:
    """Returns the view with a number."""
    view: views.View = self.records.find(f"views/{number}", views.View)
    return view

  def newest_view(self) -> int:
    """Returns the number of the newest view."""
    return len(self.keys("views"))

  def open(self, host: str) -> records_lib.Records:
    """Returns the records as a host reaches them; calls block, see `loop.call`."""
    records = records_lib.Records("judge", b"key")
    records._place = _Way(self, host)
    return records

  def ask(self, host: str, method: str, *args: Any) -> Any:
    """Makes a call for the running process, and waits for the answer.

    The call takes effect even if that process is stopped or killed meanwhile.
    """
    process = asyncio.get_running_loop()
    assert isinstance(process, loop_lib.Process)
    found = process.create_future()
    tell = functools.partial(process.take, loop_lib.settle, found)
    self._travel(host, self._arrive, tell, host, method, *args)
    if isinstance(answer := loop_lib.wait(found), OSError):
      raise answer
    return answer

  def _travel(self, host: str, then: Callable[..., Any], *args: Any) -> None:
    """Carries a call from a host, or an answer to it, once the way does not hang."""
    if secs := self.left_secs("hang_judge", host):
      self._clock.at(secs, self._travel, host, then, *args)
    else:
      range_secs = _SLOW_SECS if self.left_secs("slow_judge", host) else _CALL_SECS
      self._clock.at(self._clock.random.uniform(*range_secs), then, *args)

  def _arrive(self, tell: Callable[[Any], None], host: str, method: str, *args: Any) -> None:
    """Takes a call of a host, which has its effect now or later."""
    no_answer = OSError("The judge gives no answer.")
    if self.left_secs("cut_off", host):
      self._clock.at(_TIMEOUT_SECS, tell, no_answer)
      return
    secs, gives_up = self.late.pop(host, (0.0, False)) if method == "create" else (0.0, False)
    if gives_up and secs > _TIMEOUT_SECS:
      self._clock.at(_TIMEOUT_SECS, tell, no_answer)
      tell = lambda answer: None
    if secs:
      self._clock.at(secs, self._take_effect, tell, host, method, *args)
    else:
      self._take_effect(tell, host, method, *args)

  def _take_effect(self, tell: Callable[[Any], None], host: str, method: str, *args: Any) -> None:
    self._travel(host, tell, self._answer(host, method, *args))

  def _answer(self, host: str, method: str, *args: Any) -> Any:
    chance = self._clock.random.random() if self.left_secs("judge_errors", host) else 1.0
    if chance < 0.25 or (self.left_secs("full", host) and method not in _READS):
      return OSError("An error before the call took effect.")
    now = self.values
    if method in _READS and self.left_secs("stale", host):
      self.values = self._former[host]
    try:
      answer = getattr(self, method)(*args)
    except OSError as error:
      answer = error
    finally:
      self.values = now
    return OSError("An error after the call took effect.") if chance < 0.5 else answer

  def create(self, key: str, content: bytes) -> None:
    if key not in self.values or self.ignores_conditions:
      self.values[key] = content
      if key.startswith("views/"):
        self._on_made(self.find_view(int(key.removeprefix("views/"))))
        if self.num_torn:
          self.num_torn -= 1
          self.values[key] = b"?" + content

  def read(self, key: str) -> bytes | None:
    if (value := super().read(key)) and value.startswith(b"?"):
      raise OSError("An error in the file.")
    return value


class _Way:
  """The way of calls from a host to the place."""

  def __init__(self, place: Place, host: str) -> None:
    self._place, self._host = place, host

  def __getattr__(self, method: str) -> Callable[..., Any]:
    return functools.partial(self._place.ask, self._host, method)

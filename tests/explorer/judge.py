"""Records that hosts share: what the place has, and what goes wrong on the way.

      host                     judge
       |-- 1 call arrives ------>|   not while the way hangs; or never: an error later
       |                         |   2 it takes effect; a make may be very late
       |<-- 3 answer arrives ----|   or an error, though it took effect

The calls are those of `records.Folder`. In which order they are made, and what is concluded
from them, the real `records.Records` says: it is started anew with each answer, see `carry_on`.
"""

import collections
from collections.abc import Callable, Sequence
import functools
import json
import random
from typing import Any

from bamboo_jax import base
from bamboo_jax.base import json as json_lib
from bamboo_jax.cluster import records as records_lib, views
from tests.explorer import clock as clock_lib

_CALL_SECS = (0.0005, 0.005)  # One way.
_SLOW_SECS = (0.2, 1.5)
_TIMEOUT_SECS = 3.0  # As of `records.Bucket`.
_WRITES = ("create", "put", "delete")
_KEY = b"key"


class _WantedCall(BaseException):
  """The next call of a place, which has no answer yet."""


class _Replay:
  """A place that gives answers, and then stops whoever asks."""

  def __init__(self, answers: Sequence[Any]) -> None:
    self._answers = iter(answers)

  def __getattr__(self, method: str) -> Callable[..., Any]:
    return functools.partial(self._answer, method)

  def _answer(self, *call: Any) -> Any:
    for answer in self._answers:
      if isinstance(answer, OSError):
        raise answer
      return answer
    raise _WantedCall(call)


def carry_on(function: Any, args: Sequence[Any], answers: Sequence[Any]) -> tuple[Any, Any, Any]:
  """Carries on a function of `Records` after answers; returns the next call, result and error."""
  records = records_lib.Records("judge", _KEY)
  records._place = _Replay(answers)
  try:
    return None, function(records, *args), None
  except _WantedCall as wanted:
    return wanted.args[0], None, None
  except (OSError, base.FencedError) as error:
    return None, None, error


class Judge:
  """A place with records, as hosts reach it.

  Attributes:
    ignores_conditions: Whether what is made replaces what is there.
    cut_off: Hosts that get errors only.
    is_full: Whether writes fail.
    loses_answers: Whether half of all calls fail, half of these after their effect.
    num_torn: How many of the views to be made cannot be read.
  """

  def __init__(self, clock: clock_lib.SimulatedClock, rng: random.Random) -> None:
    self.cut_off: collections.Counter[str] = collections.Counter()
    self.is_full = self.loses_answers = self.ignores_conditions = False
    self.num_torn = 0
    self._clock, self._random = clock, rng
    self._values: dict[str, bytes] = {}
    self._hung: dict[str, float] = {}  # Until when.
    self._slow: dict[str, float] = {}
    self._late: dict[str, tuple[float, bool]] = {}  # Of the next that is made.
    self._stale: dict[str, tuple[float, dict[str, bytes]]] = {}
    self._failing: dict[str, float] = {}

  # What may happen.

  def hang(self, host: str, secs: float) -> None:
    """Calls of a host, and their answers, get no further for a while."""
    self._hung[host] = max(self._hung.get(host, 0.0), self._clock.now + secs)

  def be_slow(self, host: str, secs: float) -> None:
    """Calls of a host take long for a while."""
    self._slow[host] = self._clock.now + secs

  def be_late(self, host: str, secs: float, *, gives_up: bool) -> None:
    """The next record that a host makes is there later; it may have given up by then."""
    self._late[host] = secs, gives_up

  def be_stale(self, host: str, secs: float) -> None:
    """A host reads what there is now, for a while."""
    self._stale[host] = self._clock.now + secs, dict(self._values)

  def fail(self, host: str, secs: float) -> None:
    """Half of the calls of a host fail for a while, half of them after their effect."""
    self._failing[host] = self._clock.now + secs

  def mend(self) -> None:
    """What could not be read can be."""
    self.num_torn = 0
    self._values = {key: value.removeprefix(b"?") for key, value in self._values.items()}

  # What it has.

  def find_view(self, number: int) -> views.View | None:
    """Returns a view that it has."""
    value = self._values.get(f"views/{number}")
    if value is None:
      return None
    plain = json.loads(value.removeprefix(b"?")[64:])  # Behind the signature.
    view: views.View = json_lib.from_plain(views.View, plain)
    return view

  def newest_view(self) -> int:
    """Returns the number of the newest view."""
    return sum(key.startswith("views/") for key in self._values)

  def make(self, key: str, value: Any) -> None:
    """Makes a record at once."""
    call: Any = None
    answers: list[Any] = []
    while (call := carry_on(records_lib.Records.make, (key, value), answers)[0]) is not None:
      answers.append(getattr(self, f"_{call[0]}")(self._values, *call[1:]))

  # Calls.

  def call(self, host: str, call: tuple[Any, ...], then: Callable[[Any], None]) -> None:
    """Makes a call of a place; `then` gets the answer, or an error."""
    self._later(self._arrive, host, call, then)

  def run(
      self, host: str, function: Any, args: Sequence[Any], then: Callable[[Any, Any], None]
  ) -> None:
    """Calls a function with the records; `then` gets the result and the error."""

    def go_on(*answers: Any) -> None:
      call, result, error = carry_on(function, args, answers)
      if call is None:
        then(result, error)
      else:
        self.call(host, call, lambda found: go_on(*answers, found))

    go_on()

  def _later(self, do: Callable[..., None], host: str, *args: Any) -> None:
    is_slow = self._clock.now < self._slow.get(host, 0.0)
    secs = self._random.uniform(*(_SLOW_SECS if is_slow else _CALL_SECS))
    self._clock.at(secs, do, host, *args)

  def _hung_secs(self, host: str) -> float:
    return max(0.0, self._hung.get(host, 0.0) - self._clock.now)

  def _arrive(self, host: str, call: tuple[Any, ...], then: Any) -> None:
    if host in self.cut_off:
      self._clock.at(_TIMEOUT_SECS, then, OSError("The judge gives no answer."))
    elif secs := self._hung_secs(host):
      self._clock.at(secs, self._arrive, host, call, then)
    elif call[0] == "create" and host in self._late:
      secs, gives_up = self._late.pop(host)
      if gives_up and secs > _TIMEOUT_SECS:
        self._clock.at(_TIMEOUT_SECS, then, OSError("The judge gives no answer."))
        then = lambda answer: None
      self._clock.at(secs, self._take_effect, host, call, then)
    else:
      self._later(self._take_effect, host, call, then)

  def _take_effect(self, host: str, call: tuple[Any, ...], then: Any) -> None:
    method, *args = call
    is_failing = self.loses_answers or self._clock.now < self._failing.get(host, 0.0)
    chance = self._random.random() if is_failing else 1.0
    if chance < 0.25 or (self.is_full and method in _WRITES):
      answer: Any = OSError("An error before the call took effect.")
    else:
      until_secs, former = self._stale.get(host, (0.0, self._values))
      is_stale = method not in _WRITES and self._clock.now < until_secs
      answer = getattr(self, f"_{method}")(former if is_stale else self._values, *args)
      if chance < 0.5:
        answer = OSError("An error after the call took effect.")
    self._later(self._answer, host, then, answer)

  def _answer(self, host: str, then: Any, answer: Any) -> None:
    if secs := self._hung_secs(host):
      self._clock.at(secs, self._answer, host, then, answer)
    else:
      then(answer)

  # As `records.Folder`; values that begin with "?" cannot be read.

  def _create(self, values: dict[str, bytes], key: str, content: bytes) -> None:
    if key not in values or self.ignores_conditions:
      if self.num_torn and key.startswith("views/"):
        self.num_torn -= 1
        content = b"?" + content
      values[key] = content

  def _put(self, values: dict[str, bytes], key: str, content: bytes) -> None:
    values[key] = content

  def _read(self, values: dict[str, bytes], key: str) -> bytes | None | OSError:
    value = values.get(key)
    return OSError("An error in the file.") if value and value[:1] == b"?" else value

  def _keys(self, values: dict[str, bytes], prefix: str) -> list[str]:
    return sorted(key for key in values if key.startswith(f"{prefix}/"))

  def _delete(self, values: dict[str, bytes], key: str) -> None:
    values.pop(key, None)

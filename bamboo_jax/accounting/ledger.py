"""Adds up a run as it goes.

Whoever runs or simulates training says what the live nodes do and for how long;
between two events that is one call, however many steps there are, and takes a
fixed and small number of additions.

What is trained counts as kept until it is rolled back. The totals at a moment
to which training can go back, such as when a checkpoint's state was taken, are
a mark: to roll back to it turns all training since into lost time.
"""

from collections.abc import Mapping
import dataclasses
from typing import Any

from bamboo_jax.accounting import account as account_lib
from bamboo_jax.accounting import prices

KINDS = account_lib.KINDS
NodeTime = account_lib.NodeTime

# What a rollback throws away; the rest was not training in the first place.
_TRAINING = tuple(map(KINDS.index, ("useful", "redundant", "bubble")))
_LOST = KINDS.index("lost")


@dataclasses.dataclass(frozen=True, kw_only=True)
class Activity:
  """What the live nodes do at one time: how many of them are at what.

  A node that waits for a fifth of each step is four fifths of a useful node and
  a fifth of a bubble. So the parts need not be whole, but their sum must be
  `num_nodes`. Build it once for each situation and use it again.

  Attributes:
    num_nodes: Number of live nodes, all of which are paid for.
    useful: See `account.NodeTime`, as for all that follow.
    redundant: Likewise.
    bubble: Likewise.
    recovery: Likewise.
    checkpoint: Likewise.
    restart: Likewise.
    lost: Likewise.
    idle: Likewise.
    parts: All of these in the order of `KINDS`.
  """

  num_nodes: float
  useful: float = 0.0
  redundant: float = 0.0
  bubble: float = 0.0
  recovery: float = 0.0
  checkpoint: float = 0.0
  restart: float = 0.0
  lost: float = 0.0
  idle: float = 0.0
  parts: tuple[float, ...] = dataclasses.field(
      init=False, repr=False, compare=False
  )

  def __post_init__(self) -> None:
    time = NodeTime(**{kind: getattr(self, kind) for kind in KINDS})
    account_lib.check_whole(time.total, self.num_nodes, unit="nodes")
    object.__setattr__(self, "parts", tuple(time.by_kind().values()))


@dataclasses.dataclass(frozen=True, slots=True)
class Totals:
  """All that a ledger knows at one moment.

  Attributes:
    secs: Wall time, in seconds.
    node_secs: Time of all live nodes, in seconds of one node.
    parts: The same by kind, in the order of `KINDS`.
    num_samples: Samples trained on and not rolled back.
    value_secs: Integral of throughput over dollars per hour, over time.
  """

  secs: float = 0.0
  node_secs: float = 0.0
  parts: tuple[float, ...] = (0.0,) * len(KINDS)
  num_samples: float = 0.0
  value_secs: float = 0.0

  def as_dict(self) -> dict[str, Any]:
    """Returns what `parse` reads, for a line of a log."""
    parts = dict(zip(KINDS, self.parts, strict=True))
    return dataclasses.asdict(self) | {"parts": parts}

  @classmethod
  def parse(cls, entries: Mapping[str, Any]) -> "Totals":
    """Returns what `as_dict` wrote; `ValueError` if it did not."""
    try:
      parts = NodeTime(**entries["parts"]).by_kind()
      return cls(**{**entries, "parts": tuple(parts.values())})
    except (KeyError, TypeError) as error:
      raise ValueError(f"Not the totals of a ledger: {entries}.") from error


class Ledger:
  """The account of a run that goes on.

  Args:
    price: What a node costs.
    market: Which of its prices is paid, one of `account.MARKETS`.
    start: What there was before.
  """

  def __init__(
      self,
      price: prices.Price,
      *,
      market: str = "spot",
      start: Totals | None = None,
  ) -> None:
    account_lib.check_market(market)
    self._price = price
    self._market = market
    self._usd_per_hour = price.usd_per_hour(market)
    start = Totals() if start is None else start
    self._secs = start.secs
    self._node_secs = start.node_secs
    self._parts = list(start.parts)
    self._num_samples = start.num_samples
    self._value_secs = start.value_secs

  def add(
      self, secs: float, activity: Activity, *, num_samples: float = 0.0
  ) -> None:
    """Adds time in which the nodes did the same.

    Args:
      secs: How long, in seconds, from 0.
      activity: What they did.
      num_samples: Samples trained on in that time.
    """
    if not secs >= 0.0 or not num_samples >= 0.0:
      raise ValueError(
          f"Time and samples must be from 0, got secs={secs}, "
          f"num_samples={num_samples}."
      )
    num_nodes, parts = activity.num_nodes, self._parts
    self._secs += secs
    self._node_secs += secs * num_nodes
    for kind, count in enumerate(activity.parts):
      if count:
        parts[kind] += secs * count
    if num_samples:
      self._num_samples += num_samples
      if num_nodes:
        self._value_secs += num_samples / (num_nodes * self._usd_per_hour)

  def add_time(
      self, secs: float, node_time: NodeTime, *, num_samples: float = 0.0
  ) -> None:
    """Like `add`, for time that was measured and may never be so again."""
    if secs:
      counts = {k: t / secs for k, t in node_time.by_kind().items()}
      activity = Activity(num_nodes=node_time.total / secs, **counts)
      self.add(secs, activity, num_samples=num_samples)

  def totals(self) -> Totals:
    """Returns this moment, to which training may have to go back."""
    return Totals(
        self._secs,
        self._node_secs,
        tuple(self._parts),
        self._num_samples,
        self._value_secs,
    )

  def roll_back(self, mark: Totals) -> None:
    """Turns training since `mark` into lost time; its samples do not count.

    Time, cost, and what was not training stay as they are. Marks that are older
    than `mark` stay valid.

    Raises:
      ValueError: That moment has itself been rolled back.
    """
    lost = [self._parts[kind] - mark.parts[kind] for kind in _TRAINING]
    if min(lost) < 0 or self._num_samples < mark.num_samples:
      raise ValueError("Cannot roll back to a mark that was rolled back.")
    for kind in _TRAINING:
      self._parts[kind] = mark.parts[kind]
    self._parts[_LOST] += sum(lost)
    self._num_samples = mark.num_samples
    self._value_secs = mark.value_secs

  def account(self) -> account_lib.Account:
    """Returns what the run has come to so far.

    Raises:
      ValueError: No time has passed, or the parts are not 100 % of the time.
    """
    return account_lib.Account(
        secs=self._secs,
        num_samples=self._num_samples,
        node_secs=self._node_secs,
        node_time=NodeTime(**dict(zip(KINDS, self._parts, strict=True))),
        price=self._price,
        market=self._market,
        mean_value=self._value_secs / self._secs if self._secs else None,
    )

"""The account of a run: where its nodes' time went, and what that cost.

A node costs the same whether it trains or waits, so the time of all live nodes
is split by activity, and the parts must add up to the whole. Bamboo (NSDI'23,
section 6) calls throughput over cost the *value*: samples per second over dollars
per hour.

An `Account` grows as a run goes on, real or simulated. Training counts as kept
until it is rolled back. The line of a step in a log holds that of the whole run so
far, so the last line suffices, and any price can be applied to it later.
"""

from collections.abc import Iterable, Mapping
import dataclasses
import math
import operator
from typing import Any, NamedTuple

from bamboo_jax.accounting import prices as prices_lib

# The kinds of steps that are kept; a rollback turns them into lost time.
TRAINING = ("useful", "communication", "redundant", "bubble")
# The other kinds, as the package `ml-goodput-measurement` names them.
BADPUT = {
    "recovery": "INFRASTRUCTURE_RECOVERY_FROM_DISRUPTION",
    "checkpoint": "UNPRODUCTIVE_CHECKPOINT_SAVE_TIME",
    "restart": "PROGRAM_STARTUP",
    "lost": "WASTED_PROGRESS_FROM_DISRUPTION",
    "idle": "OTHER",
}

KEY = "account"  # Of the totals, in a line of a log.
_TOLERANCE = 1e-9  # Relative; a sum of many parts is rounded.


class NodeTime(NamedTuple):
  """Time of all nodes by activity, in node-seconds.

  Divided by wall time it is a rate: a node that waits for a fifth of each step
  is 0.8 useful nodes and 0.2 of a bubble.

  Attributes:
    useful: Training that was kept: passes, update, evaluation.
    communication: Summing gradients over pipelines, and of tied parameters.
    redundant: Only to survive the next loss: redundant forward passes, refresh
      of replicas.
    bubble: Waiting within a step.
    recovery: Detecting a loss, planning, repeating passes, moving state.
    checkpoint: Training blocked by a save.
    restart: Starting processes, compiling, loading a checkpoint.
    lost: Training that was discarded; subtracted from the kinds above.
    idle: Nodes that are paid for but take no part in training, and all nodes
      while they wait for others to join.
  """

  useful: float = 0.0
  communication: float = 0.0
  redundant: float = 0.0
  bubble: float = 0.0
  recovery: float = 0.0
  checkpoint: float = 0.0
  restart: float = 0.0
  lost: float = 0.0
  idle: float = 0.0

  def __add__(self, other: "NodeTime") -> "NodeTime":  # type: ignore[override]
    return NodeTime(*map(operator.add, self, other))

  def __mul__(self, factor: float) -> "NodeTime":  # type: ignore[override]
    return NodeTime(*(factor * part for part in self))

  def __rmul__(self, factor: float) -> "NodeTime":  # type: ignore[override]
    return self * factor  # Not that of a tuple.

  @property
  def total(self) -> float:
    """Time of all nodes, in node-seconds."""
    return math.fsum(self)

  @property
  def goodput(self) -> float:
    """Fraction of the time that was useful."""
    return self.useful / (self.total or 1.0)

  def shares(self) -> dict[str, float]:
    """Returns the fraction of each kind; they add up to 1, or 0 if no time."""
    total = self.total or 1.0
    return {kind: secs / total for kind, secs in self._asdict().items()}


KINDS = NodeTime._fields


@dataclasses.dataclass(frozen=True, slots=True)
class Account:
  """Time, samples and cost of a run so far, or of a span of time; also a mark to roll back to.

  Attributes:
    secs: Wall time.
    node_secs: Sum over nodes of the time for which they lived; all are paid for.
    node_time: `node_secs`, split by activity.
    num_samples: Samples trained on and kept; fractional if a step is cut off.
    price: Price of a node; without it, properties in dollars and `value` raise.
  """

  secs: float = 0.0
  node_secs: float = 0.0
  node_time: NodeTime = NodeTime()
  num_samples: float = 0.0
  price: prices_lib.Price | None = None
  market: str = "spot"

  def __add__(self, later: "Account") -> "Account":
    return Account(
        self.secs + later.secs,
        self.node_secs + later.node_secs,
        self.node_time + later.node_time,
        self.num_samples + later.num_samples,
    )

  def roll_back(self, mark: "Account") -> "Account":
    """Returns the account whose training since `mark` is lost time, without its samples.

    Time, cost and the other kinds stay. Marks older than `mark` stay valid, but not one
    that has itself been rolled back.
    """
    now, kept = self.node_time, {k: getattr(mark.node_time, k) for k in TRAINING}
    lost = [getattr(now, kind) - secs for kind, secs in kept.items()]
    assert min(lost) >= 0 and self.num_samples >= mark.num_samples, "The mark was rolled back."
    node_time = now._replace(**kept, lost=now.lost + sum(lost))
    return dataclasses.replace(self, node_time=node_time, num_samples=mark.num_samples)

  def charge(self, price: prices_lib.Price | None, *, market: str = "spot") -> "Account":
    """Returns the account with a price.

    Raises `ValueError` if no time has passed or the parts do not add up to it.
    """
    if not 0 < self.secs < math.inf or not 0 <= self.num_samples < math.inf:
      raise ValueError(
          "An account needs time and samples, got "
          f"secs={self.secs}, num_samples={self.num_samples}."
      )
    _check_parts(self.node_time)
    total, whole = self.node_time.total, self.node_secs
    if not abs(total - whole) <= _TOLERANCE * max(abs(whole), 1e-6):
      share = f" ({100 * total / whole:.4f} %)" if whole else ""
      raise ValueError(
          f"The parts must add up to the {whole} node-seconds of the account, "
          f"got {total}{share}."
      )
    return dataclasses.replace(self, price=price, market=market)

  def to_line(self) -> dict[str, Any]:
    """Returns the entry `KEY` of a line of a log, which has no price."""
    return {
        "secs": self.secs,
        "node_secs": self.node_secs,
        "parts": self.node_time._asdict(),
        "num_samples": self.num_samples,
    }

  @property
  def num_nodes(self) -> float:
    """Live nodes, averaged over time."""
    return self.node_secs / self.secs

  def usd_on(self, market: str) -> float:
    """Returns the cost of all nodes on a market, in dollars; needs a price."""
    assert self.price is not None, "There is no price."
    return self.node_secs / 3600 * self.price.usd_per_hour(market)

  @property
  def usd(self) -> float:
    return self.usd_on(self.market)

  @property
  def usd_per_hour(self) -> float:
    """Dollars per hour of wall time, averaged over time."""
    return self.usd / self.secs * 3600

  @property
  def samples_per_sec(self) -> float:
    return self.num_samples / self.secs

  @property
  def value(self) -> float:
    """Samples per second over dollars per hour; 0 if there was no node."""
    return self.samples_per_sec / self.usd_per_hour if self.usd else 0.0

  @property
  def usd_per_million_samples(self) -> float | None:
    return 1e6 * self.usd / self.num_samples if self.num_samples else None

  def as_dict(self) -> dict[str, float | str | None]:
    """Returns the figures of a report by name, with units in the names.

    Figures in dollars and the values are absent without a price.
    """
    figures: dict[str, float | str | None] = {
        "secs": self.secs,
        "num_nodes": self.num_nodes,
        "num_samples": self.num_samples,
        "throughput_samples_per_sec": self.samples_per_sec,
    }
    if self.price is not None:
      figures = {
          "instance": self.price.instance,
          "market": self.market,
          **figures,
          "cost_usd": self.usd,
          "cost_usd_per_hour": self.usd_per_hour,
          "value": self.value,
          "usd_per_million_samples": self.usd_per_million_samples,
          "spot_usd": self.usd_on("spot"),
          "on_demand_usd": self.usd_on("on_demand"),
      }
    shares = self.node_time.shares().items()
    return figures | {f"{kind}_pct": 100 * share for kind, share in shares}


def _check_parts(node_time: NodeTime) -> None:
  for kind, secs in node_time._asdict().items():
    if not 0 <= secs < math.inf:
      raise ValueError(f"Time of nodes must be finite and at least 0, got {kind}={secs}.")


def read(line: Mapping[str, Any]) -> Account | None:
  """Returns the account in a line of a log, if it has one; `ValueError` if it does not fit."""
  if (entries := line.get(KEY)) is None:
    return None
  try:
    own = {name: value for name, value in entries.items() if name != "value_secs"}  # Of older logs.
    account = Account(node_time=NodeTime(**own.pop("parts")), **own)
    _check_parts(account.node_time)
  except (AttributeError, KeyError, TypeError) as error:
    raise ValueError(f"Not the totals of a ledger: {entries}.") from error
  return account


def read_last(lines: Iterable[Mapping[str, Any]], *, up_to_step: int | None = None) -> Account:
  """Returns the last account in lines of a log; zeros if there is none."""
  last = Account()
  for line in lines:
    if up_to_step is None or line["step"] <= up_to_step:
      last = read(line) or last
  return last

"""The account of a run: where its nodes' time went, and what that cost.

A node costs the same whether it trains or waits, so the time of all live nodes
is split by activity, and the parts must add up to the whole; real and simulated
runs end in the same `Account`. Bamboo (NSDI'23, section 6) calls throughput
over cost the *value*: samples per second over dollars per hour.

`Totals` grow as a run goes on. Training counts as kept until it is rolled back.
The line of a step in a log holds those of the whole run so far, so the last line
suffices, and any price can be applied to it later.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
import dataclasses
import functools
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


@dataclasses.dataclass(frozen=True, kw_only=True)
class NodeTime:
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

  def __post_init__(self) -> None:
    for kind, secs in zip(KINDS, self.parts, strict=True):
      if not 0 <= secs < math.inf:
        raise ValueError(f"Time of nodes must be finite and at least 0, got {kind}={secs}.")

  def __add__(self, other: "NodeTime") -> "NodeTime":
    return NodeTime.of(map(sum, zip(self.parts, other.parts, strict=True)))

  def __mul__(self, factor: float) -> "NodeTime":
    return NodeTime.of(factor * part for part in self.parts)

  @classmethod
  def of(cls, parts: Iterable[float]) -> "NodeTime":
    """Returns the node time with `parts`, in the order of `KINDS`."""
    return cls(**dict(zip(KINDS, parts, strict=True)))

  @functools.cached_property
  def parts(self) -> tuple[float, ...]:
    """The time of each of `KINDS`, in their order."""
    return tuple(getattr(self, kind) for kind in KINDS)

  @property
  def total(self) -> float:
    """Time of all nodes, in node-seconds."""
    return math.fsum(self.parts)

  @property
  def goodput(self) -> float:
    """Fraction of the time that was useful."""
    return self.useful / (self.total or 1.0)

  def shares(self) -> dict[str, float]:
    """Returns the fraction of each kind; they add up to 1, or 0 if no time."""
    total = self.total or 1.0
    shares = (secs / total for secs in self.parts)
    return dict(zip(KINDS, shares, strict=True))


KINDS = tuple(field.name for field in dataclasses.fields(NodeTime))


@dataclasses.dataclass(frozen=True, kw_only=True)
class Account:
  """Time, samples and cost of a run so far.

  Attributes:
    secs: Wall time.
    num_samples: Samples trained on and kept; fractional if a step is cut off.
    node_secs: Sum over nodes of the time for which they lived.
    node_time: `node_secs`, split by activity.
    price: Price of a node; without it, properties in dollars and `value` raise.
  """

  secs: float
  num_samples: float
  node_secs: float
  node_time: NodeTime
  price: prices_lib.Price | None
  market: str = "spot"

  def __post_init__(self) -> None:
    prices_lib.check_market(self.market)
    if not 0 < self.secs < math.inf or not 0 <= self.num_samples < math.inf:
      raise ValueError(
          "An account needs time and samples, got "
          f"secs={self.secs}, num_samples={self.num_samples}."
      )
    total, whole = self.node_time.total, self.node_secs
    if not abs(total - whole) <= _TOLERANCE * max(abs(whole), 1e-6):
      share = f" ({100 * total / whole:.4f} %)" if whole else ""
      raise ValueError(
          f"The parts must add up to the {whole} node-seconds of the account, "
          f"got {total}{share}."
      )

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
    """Cost of all nodes on the market of the account, in dollars."""
    return self.usd_on(self.market)

  @property
  def usd_per_hour(self) -> float:
    """Dollars per hour of wall time, averaged over time."""
    return self.usd / self.secs * 3600

  @property
  def samples_per_sec(self) -> float:
    """Throughput, averaged over time."""
    return self.num_samples / self.secs

  @property
  def value(self) -> float:
    """Samples per second over dollars per hour; 0 if there was no node."""
    return self.samples_per_sec / self.usd_per_hour if self.usd else 0.0

  @property
  def usd_per_million_samples(self) -> float | None:
    """Dollars per million samples; None without samples."""
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


@dataclasses.dataclass(frozen=True, slots=True)
class Totals:
  """Totals of a run up to one moment, also as a mark to roll back to.

  Attributes:
    secs: Wall time.
    node_secs: Time of all live nodes, which are all paid for.
    parts: `node_secs`, split in the order of `KINDS`.
    num_samples: Samples trained on and kept.
  """

  secs: float = 0.0
  node_secs: float = 0.0
  parts: tuple[float, ...] = (0.0,) * len(KINDS)
  num_samples: float = 0.0

  def as_dict(self) -> dict[str, Any]:
    """Returns the totals for a line of a log, parts by name."""
    parts = dict(zip(KINDS, self.parts, strict=True))
    return dataclasses.asdict(self) | {"parts": parts}

  @classmethod
  def parse(cls, entries: Mapping[str, Any]) -> "Totals":
    """Reads the output of `as_dict`; raises `ValueError` if it does not fit."""
    own = {key: value for key, value in entries.items() if key != "value_secs"}  # Of older logs.
    try:
      return cls(**{**own, "parts": NodeTime(**entries["parts"]).parts})
    except (KeyError, TypeError) as error:
      raise ValueError(f"Not the totals of a ledger: {entries}.") from error

  def add(
      self, secs: float, parts: Sequence[float], *, node_secs: float, num_samples: float = 0.0
  ) -> "Totals":
    assert secs >= 0.0 and num_samples >= 0.0, f"secs={secs}, num_samples={num_samples}"
    return Totals(
        self.secs + secs,
        self.node_secs + node_secs,
        tuple(map(operator.add, self.parts, parts)),
        self.num_samples + num_samples,
    )

  def roll_back(self, mark: "Totals") -> "Totals":
    """Returns totals whose training since `mark` is lost time, without its samples.

    Time, cost and the other kinds stay. Marks older than `mark` stay valid, but not one
    that has itself been rolled back.
    """
    parts, kept = (dict(zip(KINDS, totals.parts, strict=True)) for totals in (self, mark))
    lost = [parts[kind] - kept[kind] for kind in TRAINING]
    assert min(lost) >= 0 and self.num_samples >= mark.num_samples, "The mark was rolled back."
    parts |= {kind: kept[kind] for kind in TRAINING}
    parts["lost"] += sum(lost)
    return dataclasses.replace(self, parts=tuple(parts.values()), num_samples=mark.num_samples)

  def account(self, price: prices_lib.Price | None, *, market: str = "spot") -> Account:
    """Returns the account of the run so far.

    Raises `ValueError` if no time has passed or the parts do not add up to it.
    """
    return Account(
        secs=self.secs,
        num_samples=self.num_samples,
        node_secs=self.node_secs,
        node_time=NodeTime.of(self.parts),
        price=price,
        market=market,
    )


class StepTotals(NamedTuple):
  """The totals after a step, from a line of a log."""

  step: int
  totals: Totals


def entries(lines: Iterable[Mapping[str, Any]]) -> Iterator[StepTotals]:
  """Yields the entries in lines of a log; `ValueError` for a bad "account"."""
  for line in lines:
    if line.get(KEY) is not None:
      yield StepTotals(line["step"], Totals.parse(line[KEY]))


def last_totals(lines: Iterable[Mapping[str, Any]], *, up_to_step: int | None = None) -> Totals:
  """Returns the last totals in lines of a log; zeros if there are none."""
  last = Totals()
  for step, totals in entries(lines):
    if up_to_step is None or step <= up_to_step:
      last = totals
  return last


def split_step(
    secs: float,
    *,
    num_nodes: int,
    passes: NodeTime,
    joint: NodeTime,
    num_idle: int = 0,
    lost_secs: float = 0.0,
) -> NodeTime:
  """Returns the time of all nodes in a step, those that died in it included.

  Unaccounted time is the bubble. Threads measure the parts, which may overlap a
  little; an excess over the available time is cut from `recovery` first, then
  from `redundant`, `communication` and `useful`.

  Args:
    secs: Wall time of the step.
    num_nodes: Nodes that trained at the end of the step.
    passes: Node-seconds, summed over nodes; passes on behalf of lost nodes are
      `recovery`.
    joint: Wall seconds of work that all nodes did at once: updating, summing
      gradients, refreshing replicas, recovering.
    num_idle: Live nodes that took no part in it, such as spares.
    lost_secs: Time from the start of the step to each death in it, summed.
  """
  left = num_nodes * secs
  worked = passes + joint * num_nodes
  parts = {}
  for kind in ("useful", "communication", "redundant", "recovery"):
    parts[kind] = min(getattr(worked, kind), left)
    left -= parts[kind]
  return NodeTime(**parts, bubble=left, lost=lost_secs, idle=num_idle * secs)

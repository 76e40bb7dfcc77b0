"""Running totals of a run, from which its account is made.

Between two events the live nodes work at a constant rate, a `NodeTime` per
second, so one call covers any number of steps. Training counts as kept until it
is rolled back. A mark is the totals at the time of a checkpoint: rolling back
to it turns all later training into lost time.
"""

from collections.abc import Mapping, Sequence
import dataclasses
import operator
from typing import Any

from bamboo_jax.accounting import account as account_lib, prices as prices_lib

KINDS = account_lib.KINDS
NodeTime = account_lib.NodeTime


@dataclasses.dataclass(frozen=True, slots=True)
class Totals:
  """Totals of a run up to one moment.

  Attributes:
    secs: Wall time.
    node_secs: Time of all live nodes.
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


class Ledger:
  """Totals of a run in progress.

  Args:
    price: Price of a node; None: only time and samples are added up.
    market: One of `prices.MARKETS`; `ValueError` for another one.
    start: Totals of the part of the run before this process.
  """

  def __init__(
      self, price: prices_lib.Price | None, *, market: str = "spot", start: Totals | None = None
  ) -> None:
    self._price = price
    self._market = market
    prices_lib.check_market(market)
    self._totals = start or Totals()

  def add(
      self, secs: float, rate: NodeTime, *, num_nodes: float | None = None, num_samples: float = 0.0
  ) -> None:
    """Adds `secs` of wall time at a constant `rate`, in nodes per kind.

    `num_nodes` is the number of live nodes, which are all paid for: by default
    the sum of the rate's parts.
    """
    num_nodes = rate.total if num_nodes is None else num_nodes
    self._add(secs, [secs * n for n in rate.parts], num_nodes, num_samples)

  def add_time(self, secs: float, node_time: NodeTime, *, num_samples: float = 0.0) -> None:
    """Adds `node_time`, measured over `secs` of wall time, unless that is 0."""
    if secs:
      self._add(secs, node_time.parts, node_time.total / secs, num_samples)

  def _add(self, secs: float, parts: Sequence[float], num_nodes: float, num_samples: float) -> None:
    if not secs >= 0.0 or not num_samples >= 0.0:
      raise ValueError(
          f"Time and samples must be at least 0, got secs={secs}, " f"num_samples={num_samples}."
      )
    old = self._totals
    self._totals = Totals(
        old.secs + secs,
        old.node_secs + secs * num_nodes,
        tuple(map(operator.add, old.parts, parts)),
        old.num_samples + num_samples,
    )

  def totals(self) -> Totals:
    """Returns the totals so far, as a mark to roll back to."""
    return self._totals

  def roll_back(self, mark: Totals) -> None:
    """Turns training since `mark` into lost time and drops its samples.

    Time, cost and the other kinds stay. Marks older than `mark` stay valid;
    `ValueError` for a mark that has itself been rolled back.
    """
    now = self._totals
    parts = dict(zip(KINDS, now.parts, strict=True))
    kept = dict(zip(KINDS, mark.parts, strict=True))
    lost = [parts[kind] - kept[kind] for kind in account_lib.TRAINING]
    if min(lost) < 0 or now.num_samples < mark.num_samples:
      raise ValueError("Cannot roll back to a mark that was rolled back.")
    parts |= {kind: kept[kind] for kind in account_lib.TRAINING}
    parts["lost"] += sum(lost)
    self._totals = dataclasses.replace(
        now, parts=tuple(parts.values()), num_samples=mark.num_samples
    )

  def account(self) -> account_lib.Account:
    """Returns the account of the run so far.

    Raises `ValueError` if no time has passed or the parts do not add up to it.
    """
    now = self._totals
    return account_lib.Account(
        secs=now.secs,
        num_samples=now.num_samples,
        node_secs=now.node_secs,
        node_time=NodeTime.of(now.parts),
        price=self._price,
        market=self._market,
    )

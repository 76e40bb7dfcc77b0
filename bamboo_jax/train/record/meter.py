"""The running account of a run.

All time of a process is charged to its nodes: steps by their phases and passes,
other time by the activity of the loop. A node that joins is charged from its
start. The log has the totals after each step, from which a resumed run
continues. Time between two processes is not charged, since it is unknown which
nodes were live.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
import contextlib
import dataclasses
import functools
import pathlib
import statistics
import time

from bamboo_jax import base, config as config_lib
from bamboo_jax.accounting import (
    account as account_lib,
    ledger as ledger_lib,
    prices as prices_lib,
    runs,
)
from bamboo_jax.metrics import jsonl
from bamboo_jax.train import step as step_lib


@dataclasses.dataclass(frozen=True)
class Nodes:
  """The live nodes of a run; `owners` is by pipeline and stage."""

  owners: Sequence[Sequence[int]]
  spares: Collection[int]

  @property
  def training(self) -> frozenset[int]:
    """Nodes that have a stage."""
    return frozenset(node for row in self.owners for node in row)

  @property
  def live(self) -> frozenset[int]:
    """All live nodes, spares included."""
    return self.training | frozenset(self.spares)


# Phases in which all nodes work together, by the kind of their time. Passes are
# measured per node; a vote is a wait.
_JOINT = {"useful": ("norm", "apply"), "redundant": ("refresh",)}


def make_meter(config: config_lib.Config, *, since_secs: float | None = None) -> "Meter":
  """Returns the meter of a config, started now or at `since_secs`.

  Raises `ValueError` if price or market are unknown, or there are options of a
  price but no instance; `OSError` if the file of prices cannot be read.
  """
  pipeline = config.pipeline
  return Meter(
      find_price(config),
      market=config.cost.market,
      batch_size=pipeline.num_pipelines * pipeline.num_microbatches * pipeline.microbatch_size,
      since_secs=since_secs,
  )


def find_price(config: config_lib.Config) -> prices_lib.Price | None:
  """Returns the price of a node; None if the config names no kind of node.

  Raises as `make_meter`.
  """
  options = config.cost
  if options.instance is None:
    for name in ("prices", "region", "date"):
      if (value := getattr(options, name)) is not None:
        raise ValueError(
            f"config.cost.{name}={value!r} has no effect without "
            "config.cost.instance, such as p3.2xlarge."
        )
    return None
  return prices_lib.find_price(
      options.instance, prices=options.prices, region=options.region, date=options.date
  )


class Meter:
  """Charges the time of a run.

  Args:
    price: Price per node; None: only time and samples are counted.
    market: One of `prices.MARKETS`.
    clock: Returns seconds, on the clock of `step.Committed`.
    since_secs: Start of the charged time, on `clock`; None: now.
  """

  def __init__(
      self,
      price: prices_lib.Price | None,
      *,
      market: str,
      batch_size: int,
      clock: Callable[[], float] = time.perf_counter,
      since_secs: float | None = None,
  ) -> None:
    self._make_ledger = functools.partial(ledger_lib.Ledger, price, market=market)
    self._batch_size = batch_size
    self._clock = clock
    self._since_secs = clock() if since_secs is None else since_secs
    self._last = self._since_secs
    self._has_begun = False
    self._boot_secs = 0.0  # Of nodes that have joined, not charged yet.
    self._ledger = self._make_ledger()
    self._nodes = Nodes((), ())  # At the last charge.
    self._otherwise = "restart"  # Charged by default.

  @property
  def account(self) -> account_lib.Account:
    """Account so far; `ValueError` if no time has been charged."""
    return self._ledger.account()

  @property
  def totals(self) -> dict[str, object]:
    """The totals so far, as an entry of the log."""
    return {runs.KEY: self._ledger.totals().as_dict()}

  def watch(self, nodes: Nodes) -> None:
    """Charges these nodes for the time since the last charge."""
    self._nodes = nodes

  def welcome(
      self, boot_secs: Mapping[base.NodeId, float], nodes: Nodes | None
  ) -> dict[base.NodeId, float]:
    """Charges joining nodes for the time since their start, with the next step.

    Before the first step, the nodes of the run are charged from its start.

    Args:
      boot_secs: Seconds from each node's start until now, by number.
      nodes: The nodes charged from now on; None within a step.

    Returns:
      The entries of `boot_secs` of nodes that join a run that has begun.
    """
    come = {n: s for n, s in boot_secs.items() if n not in self._nodes.live}
    if not self._has_begun:
      self._boot_secs += len(come) * (self._clock() - self._since_secs)
      come = {}
    self._boot_secs += sum(come.values())
    if nodes is not None:
      self.charge()
      self.watch(nodes)
    return come

  def resume(self, path: pathlib.Path, *, step: int) -> None:
    """Continues from a log, which may be absent; rolls back to `step`."""
    if path.exists():
      totals = runs.last_totals(jsonl.read_lines(path))
      self._ledger = self._make_ledger(start=totals)
      self.roll_back(path, step=step)

  def take_over(self, path: pathlib.Path, *, step: int) -> None:
    """Continues after `step` in the log of another member.

    This member has measured the time since then, too.
    """
    totals = runs.last_totals(jsonl.read_lines(path), up_to_step=step)
    self._ledger = self._make_ledger(start=totals)
    self._otherwise, self._has_begun = "idle", True

  def roll_back(self, path: pathlib.Path, *, step: int) -> None:
    """Turns training after `step` in the log `path` into lost time."""
    lines = jsonl.read_lines(path)
    self._ledger.roll_back(runs.last_totals(lines, up_to_step=step))

  def charge(self, kind: str | None = None) -> None:
    """Charges the time since the last charge to `kind`, for all nodes.

    `kind` is one of `account.KINDS`; None is "restart" before the first step
    and "idle" after it.
    """
    self._charge_until(self._clock(), kind or self._otherwise)

  @contextlib.contextmanager
  def during(self, kind: str) -> Iterator[None]:
    """Charges the time of a `with` block to `kind`."""
    self.charge()
    before, self._otherwise = self._otherwise, kind
    try:
      yield
    finally:
      self.charge()
      self._otherwise = before

  def add_step(
      self, step: step_lib.Committed, *, nodes: Nodes, num_dropped: int = 0, is_late: bool = False
  ) -> None:
    """Charges a step and the time since its end.

    Args:
      nodes: Live nodes at its end.
      num_dropped: Samples of its batch that were not trained on.
      is_late: Whether a later step is already running, which will charge the
        time since the end of this one.
    """
    self._charge_until(step.start_secs, self._otherwise)
    self._otherwise, self._has_begun = "idle", True
    before, self._nodes = self._nodes, nodes
    boots = account_lib.NodeTime(idle=self._boot_secs)
    self._boot_secs = 0.0
    self._ledger.add_time(
        step.secs, _split(step, before, nodes) + boots, num_samples=self._batch_size - num_dropped
    )
    self._last = step.start_secs + step.secs
    if not is_late:
      self.charge("recovery" if step.recoveries else None)

  def _charge_until(self, end_secs: float, kind: str) -> None:
    secs = max(0.0, end_secs - self._last)
    node_secs = secs * len(self._nodes.live)
    self._ledger.add_time(secs, account_lib.NodeTime(**{kind: node_secs}))
    self._last = max(self._last, end_secs)


def _split(step: step_lib.Committed, before: Nodes, after: Nodes) -> account_lib.NodeTime:
  """Returns a step's node time; `before` and `after` have the nodes then."""
  trained = before.training & after.live
  lives = [max(0.0, r.view_at_secs - step.start_secs) for r in step.recoveries]
  split = account_lib.split_step(
      step.secs - step.idle_secs,
      num_nodes=len(trained),
      num_idle=len((before.live & after.live) - trained),
      passes=step.passes,
      joint=account_lib.NodeTime(
          **{
              kind: sum(step.phase_secs.get(phase, 0.0) for phase in phases)
              for kind, phases in _JOINT.items()
          },
          communication=step.sums_secs,
          recovery=sum(r.planning_secs for r in step.recoveries),
      ),
      lost_secs=len(before.live - after.live) * statistics.fmean(lives or [0]),
  )
  num_waited = len(before.live & after.live)
  return split + account_lib.NodeTime(idle=num_waited * step.idle_secs)

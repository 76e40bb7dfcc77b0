"""What a run costs while it runs.

From the start of a process on, all its time is charged to its nodes, split by
what they did: steps by their phases and passes, other time by what the loop was
at. The totals go into the log with each step, where a resumed run finds them.
Time between two processes is nobody's: nobody knows which nodes were there.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
import contextlib
import dataclasses
import pathlib
import statistics
import time

import ml_collections

from bamboo_jax.accounting import account as account_lib
from bamboo_jax.accounting import ledger as ledger_lib
from bamboo_jax.accounting import prices
from bamboo_jax.accounting import runs
from bamboo_jax.accounting import step_split
from bamboo_jax.metrics import jsonl
from bamboo_jax.recovery import times
from bamboo_jax.train import step as step_lib
from bamboo_jax.train import step_passes


@dataclasses.dataclass(frozen=True)
class Nodes:
  """The live nodes of a run.

  Attributes:
    owners: For each pipeline, the node of each stage.
    spares: Nodes that wait for a place.
  """

  owners: Sequence[Sequence[int]]
  spares: Collection[int]

  @property
  def training(self) -> frozenset[int]:
    """Those that have a stage."""
    return frozenset(node for row in self.owners for node in row)

  @property
  def live(self) -> frozenset[int]:
    """All of them."""
    return self.training | frozenset(self.spares)


# Phases in which all nodes work together; those of `compute` are measured by
# their passes, and votes are waited for.
_JOINT = ("ties", "reduce", "norm", "apply")


def make_meter(config: ml_collections.ConfigDict) -> "Meter":
  """Returns the meter of a config, which runs from now on.

  Raises:
    ValueError: There is no such price, or no such market.
    OSError: The file of prices cannot be read.
  """
  options = config.cost
  account_lib.check_market(options.market)
  price = prices.find_price(
      prices.load_prices(options.prices),
      options.instance,
      region=options.region,
      date=options.date,
  )
  pipeline = config.pipeline
  return Meter(
      price,
      market=options.market,
      batch_size=pipeline.num_pipelines
      * pipeline.num_microbatches
      * pipeline.microbatch_size,
  )


class Meter:
  """Charges the time of a run, and says what it has cost."""

  def __init__(
      self,
      price: prices.Price,
      *,
      market: str,
      batch_size: int,
      clock: Callable[[], float] = time.perf_counter,
  ) -> None:
    """Starts.

    Args:
      price: What a node costs.
      market: Which of its prices is paid.
      batch_size: Samples of a step.
      clock: Returns the time in seconds, as in the results of steps.
    """
    self._price = price
    self._market = market
    self._batch_size = batch_size
    self._clock = clock
    self._last = clock()
    self._ledger = ledger_lib.Ledger(price, market=market)
    self._nodes = Nodes((), ())  # As of the last look.
    self._otherwise = "restart"  # What time is charged to if nothing is said.

  @property
  def account(self) -> account_lib.Account:
    """What the run has come to; some time must have been charged."""
    return self._ledger.account()

  @property
  def totals(self) -> dict[str, object]:
    """The same, as an entry of the log."""
    return {runs.KEY: self._ledger.totals().as_dict()}

  def watch(self, nodes: Nodes) -> None:
    """Charges these nodes from the last charge on."""
    self._nodes = nodes

  def resume(self, path: pathlib.Path, *, step: int) -> bool:
    """Takes over the totals of a log, without training after `step`.

    Args:
      path: The log, as the last process has left it; may be absent.
      step: Number of steps done that are kept.

    Returns:
      Whether lines of the log will have to go.
    """
    if not path.exists():
      return False
    lines = jsonl.read_lines(path)
    self._ledger = ledger_lib.Ledger(
        self._price, market=self._market, start=runs.last_totals(lines)
    )
    self._ledger.roll_back(runs.last_totals(lines, up_to_step=step))
    return any(line["step"] > step for line in lines)

  def roll_back(self, path: pathlib.Path, *, step: int) -> None:
    """Counts training after `step` as lost; `path` is the log."""
    lines = jsonl.read_lines(path)
    self._ledger.roll_back(runs.last_totals(lines, up_to_step=step))

  def charge(self, kind: str | None = None) -> None:
    """Charges the time since the last charge, for all nodes.

    Args:
      kind: One of `account.KINDS`; None takes "restart" before the first step
        and "idle" after it.
    """
    self._charge_until(self._clock(), kind or self._otherwise)

  @contextlib.contextmanager
  def during(self, kind: str) -> Iterator[None]:
    """Charges the time of a `with` block; what was before it as `charge`."""
    self.charge()
    try:
      yield
    finally:
      self.charge(kind)

  def add_step(
      self,
      result: step_lib.StepResult,
      passes: step_passes.Passes,
      *,
      nodes: Nodes,
      recoveries: Sequence[times.RecoveryTimes] = (),
  ) -> None:
    """Charges a step, and what has followed it up to now.

    Args:
      result: The step.
      passes: What its nodes ran.
      nodes: Those that live at its end.
      recoveries: The deaths in it.
    """
    self._charge_until(result.start_secs, self._otherwise)
    self._otherwise = "idle"
    before, self._nodes = self._nodes, nodes
    self._ledger.add_time(
        result.secs,
        _split(result, passes, before, nodes, recoveries),
        num_samples=self._batch_size,
    )
    self._last = result.start_secs + result.secs
    self.charge("recovery" if recoveries else None)

  def _charge_until(self, end_secs: float, kind: str) -> None:
    secs = max(0.0, end_secs - self._last)
    node_secs = secs * len(self._nodes.live)
    self._ledger.add_time(secs, account_lib.NodeTime(**{kind: node_secs}))
    self._last = max(self._last, end_secs)


def _split(
    result: step_lib.StepResult,
    passes: step_passes.Passes,
    before: Nodes,
    after: Nodes,
    recoveries: Sequence[times.RecoveryTimes],
) -> account_lib.NodeTime:
  """Returns where the time of the nodes went in a step.

  Args:
    result: The step.
    passes: What its nodes ran.
    before: Nodes at its start.
    after: Nodes at its end.
    recoveries: The deaths in it.
  """
  phases = result.phase_secs
  trained = before.training & after.live
  lives = [max(0.0, r.view_at_secs - result.start_secs) for r in recoveries]
  mean_life = statistics.fmean(lives) if lives else 0.0
  return step_split.split_step(
      result.secs,
      num_nodes=len(trained),
      num_idle=len((before.live & after.live) - trained),
      passes=account_lib.NodeTime(
          useful=passes.useful_secs,
          redundant=passes.redundant_secs,
          recovery=passes.owed_secs,
      ),
      joint=account_lib.NodeTime(
          useful=sum(phases.get(phase, 0.0) for phase in _JOINT),
          redundant=phases.get("refresh", 0.0),
          recovery=sum(r.pause_secs for r in recoveries),
      ),
      lost_secs=len(before.live - after.live) * mean_life,
  )

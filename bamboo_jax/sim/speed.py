"""Predicts the speed of pipelines from the profile of a model.

Steps are planned and played by the code that plans real ones, once for each
shape of pipelines. The cost of a loss in the middle of a step comes from
playing the rest of that step.
"""

from collections.abc import Callable, Sequence
import dataclasses
import functools
from typing import NamedTuple, Protocol

from bamboo_jax.plan import communication as communication_lib
from bamboo_jax.plan import cost_model
from bamboo_jax.plan import makespan
from bamboo_jax.plan import partition as partition_lib
from bamboo_jax.plan import pipelines as pipelines_lib
from bamboo_jax.plan import predictor as predictor_lib
from bamboo_jax.plan import rows as rows_lib
from bamboo_jax.schedule import instruction as instruction_lib
from bamboo_jax.schedule import pauses as pauses_lib
from bamboo_jax.schedule import redundancy
from bamboo_jax.schedule import scheduler

Communication = communication_lib.Communication
Op = instruction_lib.Op
Partition = partition_lib.Partition
Pipeline = pipelines_lib.Pipeline
Pipelines = Sequence[Pipeline]

# The pause of a death is the mean over this many times and victims.
_NUM_DEATH_TIMES = 4
_NUM_VICTIMS = 2
_MOST_HELPERS = 4  # Maximum number of pipelines played; more change little.


@dataclasses.dataclass(frozen=True)
class StepCost:
  """A step of given pipelines, with its trained and dropped samples.

  The shares of the time of training nodes are those of `accounting`; the rest
  is the bubble.
  """

  secs: float
  num_samples: float
  num_dropped: float = 0.0
  useful: float = 1.0
  redundant: float = 0.0
  communication: float = 0.0

  def __post_init__(self) -> None:
    if not self.secs > 0:
      raise ValueError(f"secs of a step must be above 0, got {self.secs}.")
    shares = self.useful, self.redundant, self.communication
    if min(*shares, 1 + 1e-9 - sum(shares)) < 0:
      raise ValueError(f"The sum of shares must be from 0 to 1, got {self}.")

  def shares(self) -> dict[str, float]:
    """Returns the share of each kind; they add up to 1."""
    used = self.useful + self.redundant + self.communication
    return {
        "useful": self.useful,
        "communication": self.communication,
        "redundant": self.redundant,
        "bubble": max(0.0, 1.0 - used),
    }


@dataclasses.dataclass(frozen=True)
class Delay:
  """A delay of `secs`, plus a share of the rest of the step."""

  secs: float = 0.0
  left_share: float = 0.0


class Speed(Protocol):
  """Predicts the speed of pipelines."""

  def step(self, pipelines: Pipelines, *, drops: bool) -> StepCost:
    """Returns the cost of a step.

    If a stage is vacant in one pipeline, other pipelines compute it; with
    `drops` the pipeline does not train.
    """

  def finish(self, rung: str, before: Pipelines, after: Pipelines) -> Delay:
    """Returns the delay of a step with losses; rung "shadow" or "reroute"."""


class _Busy(NamedTuple):
  passes_ms: float
  redundant_ms: float


class ProfileSpeed:
  """Predicts steps from the costs of layers; caches played steps.

  `num_microbatches` is the total over all pipelines; with `split`, `predictor`
  assigns them when pipelines are formed. `reroute` is that of the ladder.
  """

  def __init__(
      self,
      profile: cost_model.Profile,
      *,
      num_microbatches: int,
      microbatch_size: int,
      redundant: rows_lib.Redundancy,
      split: str = "makespan",
      communication: Communication = communication_lib.RUNTIME,
      reroute: str = "shares",
  ) -> None:
    self.predictor = predictor_lib.Predictor(
        profile,
        num_microbatches=num_microbatches,
        split=split,
        redundant=redundant,
        communication=communication,
        extrapolate=True,
    )
    self._redundant = redundant
    self._reroute = reroute
    self._microbatch_size = microbatch_size
    self._paces: dict[tuple, makespan.Pace] = {}
    self._plan = functools.cache(self._plan)
    self._played_pause_ms = functools.cache(self._played_pause_ms)
    self._redundant_ms = functools.cache(self._redundant_ms)

  def step(self, pipelines: Pipelines, *, drops: bool) -> StepCost:
    """Returns the cost of a step, see `Speed`."""
    counts = self._split(pipelines)
    if drops:
      pairs = zip(pipelines, counts, strict=True)
      whole = [(p, count) for p, count in pairs if not p.vacant]
      return self._cost(pipelines, *zip(*whole, strict=True))
    if any(p.vacant for p in pipelines):
      counts = _with_stand_ins(pipelines, counts)
    return self._cost(pipelines, pipelines, counts)

  def finish(self, rung: str, before: Pipelines, after: Pipelines) -> Delay:
    """Returns the delay of the step; the mean over times of death."""
    counts = self._split(before)
    if rung == "shadow":
      longer_ms, played = 0.0, self._played_pause_ms
      if self._reroute == "shares":
        helpers = min(len(before), _MOST_HELPERS)
        played = functools.partial(played, num_pipelines=helpers)
      for pipeline, later, count in zip(before, after, counts, strict=True):
        lost = [n for n in pipeline.nodes if n not in later.nodes]
        if lost:
          one_ms = self._between(played, pipeline.partition, count)
          longer_ms = max(longer_ms, len(lost) * one_ms)
      return Delay(longer_ms / 1e3)
    if len(after) < len(before):  # No node of the others is left.
      owners = {node for p in after for node in p.nodes}
      pairs = zip(before, counts, strict=True)
      lost = sum(c for p, c in pairs if owners.isdisjoint(p.nodes))
      owed = [(p.partition, -(-lost // len(after))) for p in after]
    else:
      most = _with_stand_ins(after, counts)
      pairs = zip(after, most, counts, strict=True)
      owed = [(p.partition, more - count) for p, more, count in pairs]
    rest_ms = [self.predictor.compute_ms(p, n) for p, n in owed if n > 0]
    return Delay(max(rest_ms, default=0.0) / 1e3)

  def _split(self, pipelines: Pipelines) -> tuple[int, ...]:
    """Splits the microbatches so that all pipelines finish together."""
    paces = [self._pace(p) for p in pipelines]
    return makespan.split_by_makespan(self.predictor.num_microbatches, paces)

  def _pace(self, pipeline: Pipeline) -> makespan.Pace:
    """Returns the estimated pace of a pipeline, without playing it.

    After the first microbatch, one is finished each time the busiest node has
    done its part.
    """
    if pipeline.shape not in self._paces:
      costs = self.predictor.stage_costs(pipeline.partition)
      busy_ms: dict[int, float] = {}
      for stage, owner in enumerate(pipeline.roles.owners):
        stage_ms = costs.forward_ms[stage] + costs.backward_ms[stage]
        busy_ms[owner] = busy_ms.get(owner, 0.0) + stage_ms
      first_ms = sum(busy_ms.values()) + 2 * sum(costs.transfer_ms)
      next_ms = max(busy_ms.values())
      self._paces[pipeline.shape] = makespan.Pace(
          lambda count: first_ms + (count - 1) * next_ms, least_ms=next_ms
      )
    return self._paces[pipeline.shape]

  def _cost(
      self, training: Pipelines, computing: Pipelines, counts: Sequence[int]
  ) -> StepCost:
    """Returns the cost of a step; `computing` are the whole pipelines."""
    predictor = self.predictor
    time = predictor.step_time(
        [p.partition for p in computing], counts, [p.roles for p in computing]
    )
    num_nodes = sum(len(p.nodes) for p in training)
    passes_ms, redundant_ms, sums_ms = 0.0, 0.0, num_nodes * time.ties_ms
    for pipeline, count in zip(computing, counts, strict=True):
      busy = self._busy_ms(pipeline, count)
      passes_ms += busy.passes_ms
      redundant_ms += busy.redundant_ms
      sums_ms += sum(
          predictor.sum_ms(pipeline.partition, num_pipelines=len(computing))
      )
    total, computed = predictor.num_microbatches, sum(counts)
    # Stand-ins are charged as if each had the most work; `real` caps the sum.
    real = min(1.0, total / computed)
    num_samples = min(total, computed) * self._microbatch_size
    joint_ms = num_nodes * (time.norm_ms + time.update_ms)
    shares = _fit(
        useful=real * passes_ms + joint_ms,
        communication=sums_ms,
        redundant=real * redundant_ms + num_nodes * time.refresh_ms,
        whole=num_nodes * time.total_ms,
    )
    return StepCost(
        secs=time.total_ms / 1e3,
        num_samples=num_samples,
        num_dropped=total * self._microbatch_size - num_samples,
        **shares,
    )

  def _busy_ms(self, pipeline: Pipeline, count: int) -> _Busy:
    """Returns the time of passes, summed over nodes.

    Stages with a shadow have as many redundant passes as in a whole pipeline.
    """
    partition = pipeline.partition
    costs = self.predictor.stage_costs(partition)
    passes_ms = count * (sum(costs.forward_ms) + sum(costs.backward_ms))
    if not (shadows := pipeline.roles.shadows):
      return _Busy(passes_ms, 0.0)
    share = len(shadows) / partition.num_stages
    redundant_ms = self._between(self._redundant_ms, partition, count)
    return _Busy(passes_ms, share * redundant_ms)

  def _between(
      self,
      played: Callable[[Partition, int], float],
      partition: Partition,
      count: int,
  ) -> float:
    """Interpolates `played`, measured for a few numbers of microbatches.

    Linear between them, and beyond.
    """
    num_stages = partition.num_stages
    low, high = max(1, num_stages // 2), num_stages
    if count > high:
      low, high = high, 2 * high
    low_ms = played(partition, low)
    if low == high:
      return low_ms
    share = (count - low) / (high - low)
    return max(0.0, low_ms + share * (played(partition, high) - low_ms))

  def _redundant_ms(self, partition: Partition, count: int) -> float:
    return sum(
        slot.end_ms - slot.start_ms
        for slot in self._plan(partition, count).timeline.slots
        if slot.instruction.op is Op.REDUNDANT_FORWARD
    )

  def _played_pause_ms(
      self, partition: Partition, count: int, num_pipelines: int | None = None
  ) -> float:
    """Returns by how much a death in a whole pipeline lengthens its step.

    Its work is divided among `num_pipelines`; None: the shadow has all of it.
    """
    num_stages = partition.num_stages
    halves = range(1, 2 * _NUM_VICTIMS, 2)  # The middles of equal parts.
    victims = {half * num_stages // (2 * _NUM_VICTIMS) for half in halves}
    pauses_ms = pauses_lib.predict_pauses(
        self._plan(partition, count).timeline,
        roles=self._redundant.initial(range(num_stages)),
        microbatches=range(count),
        costs=self.predictor.stage_costs(partition),
        in_flight=scheduler.one_f_one_b_bounds(num_stages),
        num_times=_NUM_DEATH_TIMES,
        victims=sorted(victims),
        num_pipelines=num_pipelines,
    )
    return sum(pauses_ms) / len(pauses_ms)

  def _plan(
      self, partition: Partition, count: int
  ) -> redundancy.RedundancyPlan:
    """Returns the rows of a whole pipeline."""
    roles = self._redundant.initial(range(partition.num_stages))
    return self.predictor.plan(partition, count, roles)


def _fit(*, whole: float, **parts: float) -> dict[str, float]:
  """Returns parts as shares of the whole, clipped to a sum of 1."""
  left, shares = 1.0, {}
  for name, part in parts.items():
    shares[name] = min(left, part / whole)
    left -= shares[name]
  return shares


def _with_stand_ins(
    pipelines: Pipelines, counts: Sequence[int]
) -> tuple[int, ...]:
  """Returns the microbatches of the busiest node of each pipeline.

  Pipelines with the same partition share the work of a vacant stage.
  """
  most, pairs = [], list(zip(pipelines, counts, strict=True))
  for pipeline, own in pairs:
    group = [pair for pair in pairs if pair[0].partition == pipeline.partition]
    fewest_owners = min(
        sum(stage not in p.vacant for p, _ in group)
        for stage in range(pipeline.partition.num_stages)
    )
    # Without such pipelines, others of any depth take the work.
    shared = -(-sum(count for _, count in group) // max(1, fewest_owners))
    most.append(shared if fewest_owners < len(group) else own)
  return tuple(most)

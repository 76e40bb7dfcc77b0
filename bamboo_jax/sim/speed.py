"""The speed of pipelines: predicted from a profile, or looked up in a table.

`ProfileSpeed` plans and plays steps by the code that plans real ones, once for
each shape of pipelines. The cost of a loss in the middle of a step comes from
playing the rest of that step.

`Table` has published throughput by number of nodes. It does not describe
pipelines, so the cost of a node with two stages and of a vacant stage is
assumed, as published simulators do. Nothing is interpolated.
"""

from collections.abc import Callable, Mapping, Sequence
import csv
import dataclasses
import functools
import math

from bamboo_jax import base, config as config_lib
from bamboo_jax.base import packaged
from bamboo_jax.plan import (
    cost_model,
    partition as partition_lib,
    pipelines as pipelines_lib,
    predictor as predictor_lib,
)
from bamboo_jax.recovery import placement, shapes as shapes_lib
from bamboo_jax.schedule import instruction as instruction_lib, redundancy
from bamboo_jax.sim import times as times_lib

Op = instruction_lib.Op
Partition = partition_lib.Partition
Pipeline = pipelines_lib.Pipeline
Pipelines = times_lib.Pipelines
StepCost = times_lib.StepCost
Delay = times_lib.Delay

# The pause of a death is the mean over this many times and victims.
_NUM_DEATH_TIMES = 4
_NUM_VICTIMS = 2
_MOST_HELPERS = 4  # Maximum number of pipelines played; more change little.
_DOUBLED_FACTOR = 1.5  # Relative time of a step if nodes own two stages.
# Delay of a step that shadows finish, as a share of its rest.
_REDONE_SHARE = 0.5


@dataclasses.dataclass(frozen=True)
class Communication(predictor_lib.OrderedSums):
  """How published systems sum gradients and refresh replicas, as a study names it.

  The gradients of a stage in n pipelines are summed over n nodes, B bytes each:

    method   each node sends   rounds
    ring     2 (n-1)/n B       2 (n-1)            NCCL, gloo; chunks go round
    tree     2 B               2 ceil(log2 n)     NCCL's double binary tree
    ordered  2 (n-1)/n B       one as measured    this runtime's, see `plan.predictor`

  A measured rate of reduction includes both directions, whatever `duplex`.
  """

  study: config_lib.StudySection

  def find_sent(self, num_pipelines: int, num_shares: int) -> tuple[int, float]:
    """Returns the rounds of a sum, and how often a node sends its gradients."""
    n = num_pipelines
    if self.study.reduction == "ring":
      return 2 * (n - 1), 2 * (n - 1) / n
    if self.study.reduction == "tree":
      return 2 * math.ceil(math.log2(n)), 2.0
    return super().find_sent(n, num_shares)

  def sum_ms(
      self,
      profile: cost_model.Profile,
      stage: Sequence[cost_model.LayerCost],
      *,
      num_pipelines: int,
      num_shares: int,
  ) -> float:
    counts = dict(num_pipelines=num_pipelines, num_shares=num_shares)
    if self.study.overlap != "backward":
      return super().sum_ms(profile, stage, **counts)
    ready_ms, end_ms = -sum(layer.backward_ms for layer in stage), -math.inf
    for layer in reversed(stage):
      ready_ms += layer.backward_ms
      sum_ms = self.reduce_ms(profile, layer.gradient_bytes, **counts)
      end_ms = max(end_ms, ready_ms) + sum_ms
    return end_ms

  def exposed_ms(
      self, stages: Sequence[Sequence[cost_model.LayerCost]], sum_ms: Sequence[float]
  ) -> float:
    """Returns for how long sums last after the last pass of all stages.

    While the pipeline drains, each earlier stage has a backward pass to do.
    """
    drain_ms, exposed_ms = 0.0, 0.0
    for stage, stage_ms in zip(stages, sum_ms, strict=True):
      exposed_ms = max(exposed_ms, stage_ms - drain_ms)
      if self.study.overlap != "none":
        drain_ms += sum(layer.backward_ms for layer in stage)
    return exposed_ms

  def exchange_ms(self, sent_ms: float, received_ms: float) -> float:
    if self.study.duplex == "half":
      return sent_ms + received_ms
    return max(sent_ms, received_ms)


class ProfileSpeed:
  """Predicts steps from the costs of layers; caches played steps.

  `num_microbatches` is the total over all pipelines; `predictor` assigns them
  when pipelines are formed. `reroute` is as in `ladder.Ladder`.
  """

  def __init__(
      self,
      profile: cost_model.Profile,
      *,
      num_microbatches: int,
      microbatch_size: int,
      redundant: config_lib.RedundancySection,
      by_makespan: bool = True,
      communication: predictor_lib.OrderedSums = predictor_lib.RUNTIME,
      reroute: str = "shares",
      memory_limit_bytes: int | None = None,
  ) -> None:
    self.predictor = predictor_lib.Predictor(
        profile,
        num_microbatches=num_microbatches,
        by_makespan=by_makespan,
        redundant=redundant,
        communication=communication,
        extrapolate=True,
        memory_limit_bytes=memory_limit_bytes,
    )
    self._reroute = reroute
    self._microbatch_size = microbatch_size
    self._plan = functools.cache(self._plan)
    self._played_pause_ms = functools.cache(self._played_pause_ms)
    self._redundant_ms = functools.cache(self._redundant_ms)

  def step(self, pipelines: Pipelines, *, drops: bool) -> StepCost:
    counts = self._split(pipelines)
    if drops:
      pairs = zip(pipelines, counts, strict=True)
      whole = [(p, count) for p, count in pairs if not p.vacant]
      return self._cost(pipelines, *zip(*whole, strict=True))
    if any(p.vacant for p in pipelines):
      counts = _with_stand_ins(pipelines, counts)
    return self._cost(pipelines, pipelines, counts)

  def finish(self, rung: str, before: Pipelines, after: Pipelines) -> Delay:
    """Returns the delay of a step with losses, averaged over times of death."""
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
    return self.predictor.deal([self.predictor.pace(p.partition, p.roles) for p in pipelines])

  def _cost(self, training: Pipelines, computing: Pipelines, counts: Sequence[int]) -> StepCost:
    """Returns the cost of a step; `computing` are the whole pipelines."""
    predictor = self.predictor
    time = predictor.step_time(
        [p.partition for p in computing], counts, [p.roles for p in computing]
    )
    num_nodes = sum(len(p.nodes) for p in training)
    passes_ms, redundant_ms, sums_ms = 0.0, 0.0, num_nodes * time.ties_ms
    for pipeline, count in zip(computing, counts, strict=True):
      partition = pipeline.partition
      costs = predictor.stage_costs(partition)
      passes_ms += count * (sum(costs.forward_ms) + sum(costs.backward_ms))
      if shadows := pipeline.roles.shadows:  # Their stages have as many as in a whole pipeline.
        share = len(shadows) / partition.num_stages
        redundant_ms += share * self._between(self._redundant_ms, partition, count)
      sums_ms += sum(predictor.sum_ms(partition, num_pipelines=len(computing)))
    total, computed = predictor.num_microbatches, sum(counts)
    # Stand-ins are charged as if each had the most work; `real` caps the sum.
    real = min(1.0, total / computed)
    num_samples = min(total, computed) * self._microbatch_size
    joint_ms = num_nodes * (time.norm_ms + time.update_ms)
    shares = times_lib.split_time(
        useful=real * passes_ms + joint_ms,
        communication=sums_ms,
        redundant=real * redundant_ms + num_nodes * time.refresh_ms,
        whole=num_nodes * time.total_ms,
    )
    return StepCost(
        secs=time.total_ms / 1e3,
        num_samples=num_samples,
        num_dropped=total * self._microbatch_size - num_samples,
        shares=shares,
    )

  def _between(
      self, played: Callable[[Partition, int], float], partition: Partition, count: int
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
    roles = self.predictor.new_roles(partition)
    halves = range(1, 2 * _NUM_VICTIMS, 2)  # The middles of equal parts.
    victims = {roles.owners[half * roles.num_stages // (2 * _NUM_VICTIMS)] for half in halves}
    pauses_ms = predictor_lib.predict_pauses(
        self._plan(partition, count),
        roles,
        num_times=_NUM_DEATH_TIMES,
        victims=sorted(victims),
        num_pipelines=num_pipelines,
    )
    return sum(pauses_ms) / len(pauses_ms)

  def _plan(self, partition: Partition, count: int) -> redundancy.PlannedRows:
    return self.predictor.plan(partition, count, self.predictor.new_roles(partition))


def _with_stand_ins(pipelines: Pipelines, counts: Sequence[int]) -> tuple[int, ...]:
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


@dataclasses.dataclass(frozen=True)
class Table:
  """Throughput of a system by number of nodes; a `times.Speed`.

  Messages call it `name`. A place covered by a shadow or by other pipelines
  counts as a node.
  """

  name: str
  samples_per_step: float
  samples_per_sec: Mapping[int, float]

  def __post_init__(self) -> None:
    if not self.samples_per_sec:
      raise ValueError(f"{self.name} has no throughput.")

  def step_secs(self, num_nodes: int) -> float:
    """Returns the time of a step; `ValueError` if the table lacks the nodes."""
    if num_nodes not in self.samples_per_sec:
      known = sorted(self.samples_per_sec)
      raise ValueError(
          f"{self.name} has no throughput for {num_nodes} nodes, only for "
          f"{', '.join(map(str, known))}."
      )
    return self.samples_per_step / self.samples_per_sec[num_nodes]

  def step(self, pipelines: Pipelines, *, drops: bool) -> StepCost:
    secs = self.step_secs(sum(p.partition.num_stages for p in pipelines))
    if any(len({*p.roles.owners}) < p.roles.num_stages for p in pipelines):
      secs *= _DOUBLED_FACTOR
    samples = self.samples_per_step
    num_vacant = sum(bool(p.vacant) for p in pipelines)
    if not drops:
      num_whole = max(1, len(pipelines) - num_vacant)
      return StepCost(secs * len(pipelines) / num_whole, samples)
    dropped = samples * num_vacant / len(pipelines)
    return StepCost(secs, samples - dropped, dropped)

  def finish(self, rung: str, before: Pipelines, after: Pipelines) -> Delay:
    if rung == "shadow":
      return Delay(left_share=_REDONE_SHARE)
    late, soon = (self.step(p, drops=False).secs for p in (after, before))
    return Delay(max(0.0, late - soon))


@dataclasses.dataclass(frozen=True)
class TableShapes:
  """Pipelines whose stages are equal parts of a model; a `recovery.shapes.Shapes`.

  Attributes:
    is_even: Whether all nodes are used, in pipelines of at least `num_stages`, of almost
      equal size; else all pipelines have `num_stages`.
  """

  num_stages: int
  has_replicas: bool
  is_even: bool = True
  max_pipelines: int | None = None

  @property
  def smallest(self) -> partition_lib.Partition:
    return self._partition(self.num_stages)

  def partitions(self, num_nodes: int) -> shapes_lib.Partitions:
    """Returns partitions of a model of equal layers, two for each of `num_stages` if even."""
    most = num_nodes if self.is_even else self.max_pipelines or num_nodes
    count = min(num_nodes // self.num_stages, most)
    if not count:
      raise base.InfeasibleError(f"Too few nodes for a pipeline of {self.num_stages}: {num_nodes}.")
    if not self.is_even:
      return (self.smallest,) * count
    each, rest = divmod(num_nodes, count)
    return tuple(self._partition(each + (i < rest)) for i in range(count))

  def adapt(
      self, pipelines: Sequence[shapes_lib.Pipeline], nodes: shapes_lib.Nodes
  ) -> shapes_lib.Pipelines:
    partitions = self.partitions(len(nodes))
    if not self.is_even:
      if not shapes_lib.fires(config_lib.RecoverySection(), pipelines, nodes, most=len(partitions)):
        return tuple(pipelines)
    return placement.make_pipelines(partitions, nodes, self.has_replicas)

  def _partition(self, num_nodes: int) -> partition_lib.Partition:
    num_layers = (1 + self.is_even) * self.num_stages
    return partition_lib.Partition(tuple(s * num_layers // num_nodes for s in range(num_nodes + 1)))


def read_table(section: config_lib.TableSection) -> Table:
  """Returns the table of a comma-separated file with a header.

  The file has a column "nodes"; or pipelines in "dp" and stages in "pp", as Parcae's
  (NSDI'24): then a number of nodes has the best rate that fits. Lines with "OOM" in the
  column of throughput are skipped.

  Raises:
    OSError: The file cannot be read.
    ValueError: The file is malformed; names file and line.
  """
  path, column = section.file, section.column
  assert path is not None
  name, _, value = (section.rows or "").partition("=")
  where = {name: value} if section.rows else {}
  rates: dict[int, float] = {}
  text = packaged.find_file(path).read_text(encoding="utf-8-sig")
  reader = csv.DictReader(text.splitlines())
  columns = reader.fieldnames or ()
  sizes = ("dp", "pp") if {"dp", "pp"} <= {*columns} else ("nodes",)
  for name in (*sizes, column, *where):
    if name not in columns:
      known = base.suggest(name, columns, what="column")
      raise ValueError(f"{path}, line 1: {known}")
  for line in reader:
    others = any(line[name] != value for name, value in where.items())
    if others or line[column] == "OOM":
      continue
    at = f"{path}, line {reader.line_num}"
    try:
      num_nodes = math.prod(int(line[size]) for size in sizes)
      rate = float(line[column])
    except (TypeError, ValueError):
      given = ", ".join(repr(line[size]) for size in sizes)
      raise ValueError(
          f"{at}: {', '.join(sizes)} and {column} must be numbers, got {given} "
          f"and {line[column]!r}."
      ) from None
    if num_nodes < 1 or not 0 < rate < math.inf:
      raise ValueError(
          f"{at}: nodes must be at least 1 and {column} above 0, got " f"{num_nodes} and {rate}."
      )
    if len(sizes) == 2:
      rate = max(rate, rates.get(num_nodes, 0.0))
    elif num_nodes in rates:
      raise ValueError(f"{at}: {num_nodes} nodes occur twice.")
    rates[num_nodes] = rate
  if len(sizes) == 2:
    best = 0.0
    for num_nodes in range(min(rates, default=1), max(rates, default=0) + 1):
      best = rates[num_nodes] = max(best, rates.get(num_nodes, 0.0))
  words = [column, *(f"{name} {value}" for name, value in where.items())]
  return Table(f"{path} ({', '.join(words)})", section.samples_per_step, rates)

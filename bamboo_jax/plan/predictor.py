"""Predicts the time of a step of pipelines that may differ, and the delay by a death in it.

The passes of each pipeline are planned and played instruction by instruction, as in
`planner`. Then all nodes run the other phases together, each as long as its slowest node.

The gradients of a stage in n pipelines are summed over n nodes, B bytes each:
parts are gathered, added in the order of shares, and gathered back, so a node
sends 2 (n-1)/n B. So the bits do not depend on the distribution of shares. With
k shares per pipeline nothing can be added before it is sent, and a node sends
(k + 1) (n-1)/n B.
"""

from collections.abc import Sequence
import dataclasses
import functools
import math
import operator

import numpy as np

from bamboo_jax import base, config as config_lib
from bamboo_jax.models import units
from bamboo_jax.plan import (
    batch_split,
    cost_model,
    memory as memory_lib,
    partition as partition_lib,
    pipelines as pipelines_lib,
    rows as rows_lib,
)
from bamboo_jax.schedule import (
    costs as costs_lib,
    dealing,
    failover,
    holdings as holdings_lib,
    lines as lines_lib,
    redundancy,
    simulate as simulate_lib,
)

Partition = partition_lib.Partition
Roles = failover.Roles
Pipeline = pipelines_lib.Pipeline

# A pipeline is in its steady state if a microbatch takes at most this multiple
# of the nodes' work.
_MOST_WAITING = 1.3
_HELD = dataclasses.replace(
    memory_lib.OVERLAPPED, protection=config_lib.RedundancySection(mode="bubble")
)
_CACHED = (
    *("stage_costs", "redundant_costs", "other_phases", "new_roles"),
    *("_compute_ms", "_pace"),
)


class OrderedSums:
  """What sums and replicas cost in this runtime; `sim.communication` has other ways.

  Sums follow all passes, and a node sends or receives, not both at a time.
  """

  def reduce_ms(
      self, profile: cost_model.Profile, num_bytes: int, *, num_pipelines: int, num_shares: int
  ) -> float:
    """Returns the time to sum `num_bytes` of gradients over all shares."""
    if num_shares == 1:
      return 0.0
    rounds, sent = 1, float(num_shares - 1)  # Added, if nothing is sent.
    if num_pipelines > 1:
      rounds, sent = self.find_sent(num_pipelines, num_shares)
    sent_ms = sent * num_bytes / profile.reduce_bytes_per_ms
    if num_pipelines > 1:
      sent_ms = self.exchange_ms(sent_ms, sent_ms)
    return rounds * profile.reduce_latency_ms + sent_ms

  def find_sent(self, num_pipelines: int, num_shares: int) -> tuple[int, float]:
    """Returns the rounds of a sum, and how often a node sends its gradients."""
    n = num_pipelines
    return 1, (num_shares // n + 1) * (n - 1) / n

  def sum_ms(
      self,
      profile: cost_model.Profile,
      stage: Sequence[cost_model.LayerCost],
      *,
      num_pipelines: int,
      num_shares: int,
  ) -> float:
    """Returns how long the sum of a stage lasts after its own last pass."""
    num_bytes = sum(layer.gradient_bytes for layer in stage)
    counts = dict(num_pipelines=num_pipelines, num_shares=num_shares)
    return self.reduce_ms(profile, num_bytes, **counts)

  def exposed_ms(
      self, stages: Sequence[Sequence[cost_model.LayerCost]], sum_ms: Sequence[float]
  ) -> float:
    """Returns for how long sums last after the last pass of all stages."""
    del stages
    return max(0.0, *sum_ms)

  def exchange_ms(self, sent_ms: float, received_ms: float) -> float:
    """Returns the time to send to one neighbour and receive from another."""
    return sent_ms + received_ms


RUNTIME = OrderedSums()


@dataclasses.dataclass(frozen=True)
class StepTime:
  """Duration of the phases of a step, which follow each other.

  Attributes:
    compute_ms: Forward and backward passes and the transfers between stages.
    ties_ms: Summing gradients of parameters shared by layers of two stages.
    reduce_ms: Summing gradients over shares, after the passes.
    norm_ms: Global gradient norm.
    refresh_ms: Bringing replicas up to date.
    vote_ms: Vote that the step is done.
    update_ms: Optimizer updates of stages and replicas.
  """

  compute_ms: float
  ties_ms: float
  reduce_ms: float
  norm_ms: float
  refresh_ms: float
  vote_ms: float
  update_ms: float

  @property
  def phases(self) -> tuple[float, ...]:
    """The time of each phase, in their order."""
    return tuple(vars(self).values())

  @property
  def total_ms(self) -> float:
    """Time of all phases."""
    return sum(self.phases)


@dataclasses.dataclass(frozen=True)
class Traffic:
  """Bytes from each node to each other one in a step, [sender, receiver], by phase.

  Attributes:
    nodes: The nodes of rows and columns.
    passes: Outputs of stages, and the gradients with respect to them.
    refresh: What replicas need.
    num_sums: Most sums of a node, which follow each other: one for each unit.
    regions: Those of the nodes.
  """

  nodes: tuple[base.NodeId, ...]
  passes: np.ndarray
  ties: np.ndarray
  sums: np.ndarray
  refresh: np.ndarray
  num_sums: int
  regions: costs_lib.Regions

  @property
  def total(self) -> np.ndarray:
    """Bytes of all phases."""
    total: np.ndarray = self.passes + self.ties + self.sums + self.refresh
    return total

  def between(self, sent: np.ndarray) -> np.ndarray:
    """Returns the bytes of `sent` from each region to each other one."""
    names = self.regions.names(self.nodes)
    is_in = np.array([[name == other for other in sorted({*names})] for name in names], float)
    between: np.ndarray = is_in.T @ sent @ is_in
    np.fill_diagonal(between, 0.0)
    return between

  def lengthen(self, time: StepTime) -> StepTime:
    """Returns the time of a step in which this crosses the links between regions.

    Between two regions there is one slow link, which all their nodes share. So a phase
    lasts longer by the time of all that crosses it, in the direction with most. The
    `compute_ms` of `time` has the transfers of each pipeline already, as if it were alone.
    """
    regions = self.regions

    def cross_ms(sent: np.ndarray, num_trips: int) -> float:
      most = float(self.between(sent).max())
      return num_trips * regions.latency_ms + most / regions.bytes_per_ms if most else 0.0

    return StepTime(
        compute_ms=max(time.compute_ms, cross_ms(self.passes, 0)),
        ties_ms=time.ties_ms + cross_ms(self.ties, 2),
        reduce_ms=time.reduce_ms + cross_ms(self.sums, 2 * self.num_sums),
        norm_ms=time.norm_ms + regions.latency_ms,
        refresh_ms=time.refresh_ms + cross_ms(self.refresh, 1),
        vote_ms=time.vote_ms + regions.latency_ms,
        update_ms=time.update_ms,
    )


@dataclasses.dataclass(eq=False)
class Predictor:
  """Predicts steps of a model; caches the played pipelines by their shape.

  Attributes:
    num_microbatches: Per step, over all pipelines.
    num_shares: Shares of the global batch. A pipeline has at least one; if
      they cannot be dealt evenly, all are charged like the one with most.
    by_makespan: Whether microbatches are dealt to pipelines so that they finish
      together; else evenly.
    group: Microbatches that stay together, such as those of a share.
    redundant: Options of replicas.
    extrapolate: Whether to extrapolate a pipeline from its steady state, in
      which each microbatch takes as long as the one before.
    memory_limit_bytes: Of a node's device; None: no limit. It decides where
      residuals of redundant passes wait.
  """

  profile: cost_model.Profile
  _: dataclasses.KW_ONLY
  num_microbatches: int
  num_shares: int = 1
  by_makespan: bool = True
  group: int = 1
  redundant: config_lib.RedundancySection = config_lib.RedundancySection()
  communication: OrderedSums = RUNTIME
  extrapolate: bool = False
  memory_limit_bytes: int | None = None

  def __post_init__(self) -> None:
    for name in _CACHED:
      setattr(self, name, functools.cache(getattr(self, name)))

  @property
  def most_pipelines(self) -> int:
    """The largest number of pipelines."""
    return self.num_microbatches // self.group

  @property
  def has_replicas(self) -> bool:
    """Whether stages have replicas."""
    return self.redundant.has_replicas

  def compute_ms(
      self, partition: Partition, num_microbatches: int, roles: Roles | None = None
  ) -> float:
    """Returns the time of a pipeline's passes; without `roles`, a new one."""
    return self._compute_ms(partition, self._number(partition, roles), num_microbatches)

  def _number(self, partition: Partition, roles: Roles | None) -> Roles:
    """Returns the roles of new nodes, with the shadows that affect the time of passes.

    Redundant passes that only fill waits do not, so they need not be placed. Nodes of
    several regions keep their numbers.
    """
    if roles is None:
      roles = self.new_roles(partition)
    elif not self.profile.regions.are_several(roles.nodes):
      roles = roles.renumbered()
    return roles if self.redundant.lengthens else Roles(roles.owners)

  def new_roles(self, partition: Partition) -> Roles:
    """Returns the roles of a new pipeline, of nodes of no region."""
    return Roles.initial(base.nodes(-partition.num_stages, 0), has_replicas=self.has_replicas)

  def _compute_ms(self, partition: Partition, roles: Roles, num_microbatches: int) -> float:
    most = roles.num_stages + 2
    if self.extrapolate and num_microbatches > most:
      if (next_ms := self._settled_ms(partition, roles)) is not None:
        return self.compute_ms(partition, most) + next_ms * (num_microbatches - most)
    return self.plan(partition, num_microbatches, roles).timeline.span_ms

  def _settled_ms(self, partition: Partition, roles: Roles) -> float | None:
    """Returns the time per microbatch in the steady state; None if not known.

    It is known if two consecutive ones take equally long, and not much longer
    than the nodes' work for one.
    """
    num_stages = roles.num_stages
    if roles.owners != self.new_roles(partition).owners or self.redundant.lengthens:
      return None
    ends = [self.compute_ms(partition, num_stages + k) for k in range(3)]
    first_ms, second_ms = ends[1] - ends[0], ends[2] - ends[1]
    costs = self.stage_costs(partition)
    sent_ms = (*costs.transfer_ms, 0.0)
    parts = zip(costs.forward_ms, costs.backward_ms, (0.0, *sent_ms[:-1]), sent_ms, strict=True)
    busy_ms = max(map(sum, parts))
    if math.isclose(first_ms, second_ms, rel_tol=1e-3) and (second_ms < _MOST_WAITING * busy_ms):
      return second_ms
    return None

  def pace(self, partition: Partition, roles: Roles | None = None) -> batch_split.PipelinePace:
    """Returns the pace of a pipeline; without `roles`, of a new one."""
    return self._pace(partition, self._number(partition, roles))

  def _pace(self, partition: Partition, roles: Roles) -> batch_split.PipelinePace:
    costs, busy_ms = self.stage_costs(partition), dict.fromkeys(roles.owners, 0.0)
    for node, *passes_ms in zip(roles.owners, costs.forward_ms, costs.backward_ms, strict=True):
      busy_ms[node] += sum(passes_ms)
    finish_ms = functools.cache(functools.partial(self._compute_ms, partition, roles))
    return batch_split.PipelinePace(finish_ms, least_ms=max(busy_ms.values()))

  def other_phases(self, partition: Partition, *, num_pipelines: int) -> StepTime:
    """Returns the phases after the passes, with `compute_ms` of 0.

    In each all nodes work at the same time, so it takes as long as its slowest stage.
    """
    profile, communication = self.profile, self.communication
    shares = -(-self.num_shares // num_pipelines)
    counts = dict(num_pipelines=num_pipelines, num_shares=shares * num_pipelines)
    stages = profile.by_stage(partition.bounds)
    sum_ms = [communication.sum_ms(profile, stage, **counts) for stage in stages]
    norm_ms = max(sum(c.norm_ms for c in stage) for stage in stages)
    update_ms = [sum(c.update_ms for c in stage) for stage in stages]
    refresh_ms = 0.0
    if len(stages) > 1:
      # Squares and losses are gathered from all members, as votes are.
      norm_ms += max(profile.reduce_latency_ms, profile.vote_ms)
    if len(stages) > 1 and self.has_replicas:
      # A node sends a neighbour its replica, and receives one, which it may update.
      refresh = self.redundant.refresh
      sent_ms = [profile.transfer_ms(cost_model.refresh_bytes(stage, refresh)) for stage in stages]
      refresh_ms = max(map(communication.exchange_ms, sent_ms, sent_ms[1:] + sent_ms[:1]))
      if refresh == "gradient":
        update_ms = [*map(operator.add, update_ms, update_ms[1:] + update_ms[:1])]
    stage_of = {layer.name: partition.stage_of(i) for i, layer in enumerate(profile.layers)}
    ties_ms = sum(  # To the owner and back.
        2 * profile.transfer_ms(tie.tied_bytes)
        for tie in profile.ties
        if stage_of[tie.owner] != stage_of[tie.user]
    )
    return StepTime(
        compute_ms=0.0,
        ties_ms=shares * ties_ms,
        reduce_ms=communication.exposed_ms(stages, sum_ms),
        norm_ms=norm_ms,
        refresh_ms=refresh_ms,
        vote_ms=profile.vote_ms,
        update_ms=max(update_ms),
    )

  def sum_ms(self, partition: Partition, *, num_pipelines: int) -> tuple[float, ...]:
    """Returns the time of each stage's sum, with one share per pipeline."""
    counts = dict(num_pipelines=num_pipelines, num_shares=num_pipelines)
    stages = self.profile.by_stage(partition.bounds)
    return tuple(self.communication.sum_ms(self.profile, stage, **counts) for stage in stages)

  def step_time(
      self,
      partitions: Sequence[Partition],
      num_microbatches: Sequence[int],
      roles: Sequence[Roles | None] | None = None,
  ) -> StepTime:
    """Returns the time of a step, with one entry per pipeline in each argument.

    Without `roles` all pipelines are new.
    """
    roles = roles or [None] * len(partitions)
    times = [
        dataclasses.replace(
            self.other_phases(partition, num_pipelines=len(partitions)),
            compute_ms=self.compute_ms(partition, count, role),
        )
        # Many are the same.
        for partition, count, role in {*zip(partitions, num_microbatches, roles, strict=True)}
    ]
    # Each phase lasts until the slowest pipeline has done it.
    time = StepTime(*map(max, zip(*(time.phases for time in times), strict=True)))
    known = [role for role in roles if role]
    if not self.profile.regions.are_several(node for role in known for node in role.nodes):
      return time
    return self.find_traffic(partitions, num_microbatches, known).lengthen(time)

  def find_traffic(
      self, partitions: Sequence[Partition], num_microbatches: Sequence[int], roles: Sequence[Roles]
  ) -> Traffic:
    """Returns the traffic of a step; arguments have one entry per pipeline.

    All pipelines are charged like the one with most shares.
    """
    profile, layers = self.profile, self.profile.layers
    nodes = tuple(sorted({node for one in roles for node in one.nodes}))
    place = {node: i for i, node in enumerate(nodes)}
    passes, ties, sums, refresh = np.zeros((4, len(nodes), len(nodes)))
    num_pipelines = len(roles)
    shares = -(-self.num_shares // num_pipelines)
    number = {layer.name: i for i, layer in enumerate(layers)}
    sizes = np.array([layer.activation_bytes for layer in layers])
    rows = []  # Of the owner of each layer, by pipeline.
    for partition, count, one in zip(partitions, num_microbatches, roles, strict=True):
      owners = np.array([place[node] for node in one.owners])
      row = owners[[partition.stage_of(i) for i in range(len(layers))]]
      rows.append(row)
      np.add.at(passes, (row[:-1], row[1:]), count * sizes[:-1])
      for tie in profile.ties:
        ties[row[number[tie.owner]], row[number[tie.user]]] += shares * tie.tied_bytes
      stages = profile.by_stage(partition.bounds)
      for stage, shadow in one.shadows.items():
        sent = cost_model.refresh_bytes(stages[stage], self.redundant.refresh)
        refresh[owners[stage], place[shadow]] += sent
    passes, ties = passes + passes.T, ties + ties.T  # There and back.
    if num_pipelines > 1:
      # To each other owner, of one byte.
      share = self.communication.find_sent(num_pipelines, shares * num_pipelines)[1] / (
          num_pipelines - 1
      )
      for layer, owners in zip(layers, zip(*rows, strict=True), strict=True):
        # Whole bytes: their sums are exact in any order, so all members find the same.
        sums[np.ix_(owners, owners)] += round(share * layer.gradient_bytes)
    for sent in (passes, ties, sums, refresh):
      np.fill_diagonal(sent, 0.0)
    firsts = {0, *units.find_cuts([layer.name for layer in layers])}
    num_sums = max(len(firsts & part) for partition in partitions for part in partition.sets)
    return Traffic(nodes, passes, ties, sums, refresh, num_sums, profile.regions)

  def split(self, pipelines: Sequence[Pipeline]) -> tuple[int, ...]:
    """Returns the microbatches of each pipeline, at least one.

    Raises:
      base.InfeasibleError: There are more pipelines than microbatches, or none.
    """
    if not self.by_makespan:
      return batch_split.split_evenly(self.num_microbatches, len(pipelines))
    return self.deal([self.pace(p.partition, p.roles) for p in pipelines])

  def deal(self, paces: Sequence[batch_split.PipelinePace]) -> tuple[int, ...]:
    """Returns each pipeline's microbatches, so that all finish together."""
    counts = batch_split.split_by_makespan(
        self.most_pipelines, [pace.grouped(self.group) for pace in paces]
    )
    return tuple(self.group * count for count in counts)

  def enough_groups(
      self, pipelines: Sequence[Pipeline], *, choices: Sequence[int], slack: float
  ) -> int:
    """Returns the least of `choices` for which pipelines finish together.

    Choices are numbers of groups in which microbatches are dealt. With the
    result, a step is longer by at most the fraction `slack` than with the
    largest choice.
    """
    paces = [self.pace(p.partition, p.roles) for p in pipelines]

    def finish_ms(count: int) -> float:
      grouped = [p.grouped(self.num_microbatches // count) for p in paces]
      dealt = batch_split.split_by_makespan(count, grouped)
      return max(p.finish_ms(n) for p, n in zip(grouped, dealt, strict=True))

    least_ms = finish_ms(max(choices))
    return min(n for n in choices if finish_ms(n) <= (1 + slack) * least_ms)

  def predict(self, pipelines: Sequence[Pipeline]) -> StepTime:
    """Returns the time of a step of the pipelines without vacant stages.

    Raises:
      base.InfeasibleError: There is no such pipeline, or more of them than
        microbatches.
    """
    whole = [p for p in pipelines if not p.vacant]
    return self.step_time([p.partition for p in whole], self.split(whole), [p.roles for p in whole])

  def describe_crossing(self, pipelines: Sequence[Pipeline]) -> str:
    """Returns a line on what the link between regions costs in a step of whole pipelines.

    "" if none of their nodes are in different regions.
    """
    roles, regions = [p.roles for p in pipelines], self.profile.regions
    if not regions.are_several(n for p in pipelines for n in p.nodes):
      return ""
    traffic = self.find_traffic([p.partition for p in pipelines], self.split(pipelines), roles)
    between = traffic.between(traffic.total)
    profile = dataclasses.replace(self.profile, regions=costs_lib.ALIKE)
    near = dataclasses.replace(self, profile=profile)
    return (
        f"between regions: {between.sum() / 2**20:.1f} MiB a step, "
        f"{between.max() / regions.bytes_per_ms:.0f} ms of the link and {regions.latency_ms:g} ms "
        f"of latency each way; predicted step {self.predict(pipelines).total_ms:.0f} ms, "
        f"{near.predict(pipelines).total_ms:.0f} ms within one region"
    )

  def plan(
      self, partition: Partition, num_microbatches: int, roles: Roles
  ) -> redundancy.PlannedRows:
    """Returns the rows of a pipeline."""
    limits = lines_lib.in_flight_limits(roles.num_stages)
    line = lines_lib.Line(roles.owners, range(num_microbatches), limits)
    costs = self.stage_costs(partition)
    if roles.shadows:
      costs = self.redundant_costs(partition, num_microbatches)
    return rows_lib.plan_rows(self.redundant, line, roles.shadows, costs=costs)

  def redundant_costs(self, partition: Partition, num_microbatches: int) -> costs_lib.StageCosts:
    """Returns costs of the stages of a new pipeline, for redundant passes.

    They include the copies of residuals to where `place_residuals` puts them.
    """
    num_stages, free_bytes = partition.num_stages, None
    if self.memory_limit_bytes is not None:
      model = memory_lib.MemoryModel(
          self.profile.layers,
          in_flight=lines_lib.in_flight_bounds(num_stages, num_microbatches),
          upkeep=_HELD,
          ties=self.profile.ties,
      )
      needs = model.find_needs(partition.bounds)[:num_stages]
      free_bytes = [self.memory_limit_bytes - need.total_bytes for _, need in needs]
    return self.profile.place_residuals(
        partition.bounds, num_microbatches=num_microbatches, free_bytes=free_bytes
    )[0]

  def stage_costs(self, partition: Partition) -> costs_lib.StageCosts:
    """Returns the costs of the stages of a pipeline."""
    return self.profile.stage_costs(partition.bounds)


def predict_pauses(
    rows: redundancy.PlannedRows,
    roles: Roles,
    *,
    num_times: int = 20,
    victims: Sequence[base.NodeId] | None = None,
    num_pipelines: int | None = None,
) -> list[float]:
  """Returns the delay of a step in ms for each victim and time of death.

  The rest of the step is planned as after a real failure, from the instructions
  that the others have finished by then, and played. Detection, planning and
  draining are not included. A victim dies in the middle of each of `num_times`
  equal parts of the step; passes that run at that time are repeated. The owed
  work is dealt over `num_pipelines`, all like this one, by microbatch; None: the
  shadow alone does it. The stages of victims have shadows.

  Args:
    rows: The rows of the pipeline, whose owners and shadows are `roles`.
  """
  timeline, costs, count = rows.timeline, rows.costs, len(roles.nodes)
  microbatches = sorted({slot.instruction.microbatch for slot in timeline.slots})
  limits = lines_lib.in_flight_limits(roles.num_stages)
  pauses_ms = []
  for k in range(num_times):
    died_ms = timeline.span_ms * (k + 0.5) / num_times
    done = {
        node: holdings_lib.after(s.instruction for s in row if s.end_ms <= died_ms)
        for node, row in timeline.rows.items()
    }
    for victim in roles.nodes if victims is None else victims:
      lines = []
      held: dict[base.NodeId, holdings_lib.Holdings] = {}
      copies: dict[base.NodeId, set[base.StageId]] = {}
      for index in range(num_pipelines or 1):
        own, mine = roles, done
        if not index:  # The death is in the first pipeline.
          own, gone = failover.fail_over(roles, {victim})
          assert not gone, (roles, victim)
          mine = failover.find_valid(own, done)
        numbers_of = base.nodes(index * count, (index + 1) * count)
        nodes = dict(zip(roles.nodes, numbers_of, strict=True))
        numbers = {m: m + index * (1 + microbatches[-1]) for m in microbatches}
        own = own.renumbered(nodes)
        held |= {nodes[n]: holdings.numbered(numbers) for n, holdings in mine.items()}
        for stage, node in (*base.by_stage(own.owners), *own.shadows.items()):
          copies.setdefault(node, set()).add(stage)
        lines.append(lines_lib.Line(own.owners, [*numbers.values()], limits, index))
      if num_pipelines is not None:
        lines = [*dealing.deal(lines, copies=copies, costs=costs, holdings=held, share_size=1)]
      rest_ms = simulate_lib.simulate(lines, costs=costs, holdings=held).span_ms
      pauses_ms.append(died_ms + rest_ms - timeline.span_ms)
  return pauses_ms

"""The planner of a simulated policy; see `ladder.Planner`.

It asks the planners that real runs use, and adds what the changes take.
"""

from collections.abc import Collection, Mapping, Sequence

from bamboo_jax.plan import cost_model
from bamboo_jax.plan import pipelines as pipelines_lib
from bamboo_jax.recovery import ladder
from bamboo_jax.recovery import moves
from bamboo_jax.recovery import placement
from bamboo_jax.sim import durations as durations_lib
from bamboo_jax.sim import layouts
from bamboo_jax.sim import placing
from bamboo_jax.sim import speed as speed_lib
from bamboo_jax.sim import step_cost as step_cost_lib

Pipeline = pipelines_lib.Pipeline
Pipelines = tuple[Pipeline, ...]


class Planner:
  """Plans pipelines and says what they cost; remembers what steps cost.

  Args:
    layout: Which pipelines to make.
    speed: How fast they are.
    durations: How long changes take.
    placer: Who gets which place.
    drops: Whether pipelines with vacant stages are left out.
    has_replicas: Whether stages have shadows.
    profile: Says how long it takes to copy state; None if that is in the
      durations.

  Attributes:
    heeds_zones: Whether `fresh` does.
  """

  def __init__(
      self,
      layout: layouts.Layout,
      speed: speed_lib.Speed,
      durations: durations_lib.Durations,
      placer: placing.Placer,
      *,
      drops: bool,
      has_replicas: bool,
      profile: cost_model.Profile | None,
  ) -> None:
    self.heeds_zones = placer.heeds_zones
    self._layout = layout
    self._speed = speed
    self._durations = durations
    self._placer = placer
    self._drops = drops
    self._has_replicas = has_replicas
    self._profile = profile
    self._costs: dict[tuple, step_cost_lib.StepCost] = {}
    self._found: dict[int, layouts.Partitions] = {}
    self._best_secs: dict[int, float] = {}

  def cost(self, pipelines: Sequence[Pipeline]) -> step_cost_lib.StepCost:
    """Returns what a step of `pipelines` costs."""
    key = tuple(p.shape for p in pipelines)
    if key not in self._costs:
      self._costs[key] = self._speed.step(pipelines, drops=self._drops)
    return self._costs[key]

  def fresh(self, nodes: Sequence[int], zones: Mapping[int, str]) -> Pipelines:
    """Returns new pipelines of `nodes`; see `ladder.Planner`."""
    return self._placer.place(self.partitions(len(nodes)), nodes, zones)

  def arrange(
      self, nodes: Sequence[int], zones: Mapping[int, str]
  ) -> Sequence[int]:
    """Returns which of `nodes` is at each place of `fresh`, and then others."""
    return self._placer.arrange(self.partitions(len(nodes)), nodes, zones)

  def adapt(
      self,
      pipelines: Sequence[Pipeline],
      nodes: Collection[int],
      zones: Mapping[int, str],
  ) -> Pipelines:
    """Returns pipelines of `nodes`; the same if new ones are no faster.

    See `ladder.Planner`; zones do not matter here.
    """
    del zones
    is_whole = all({*nodes}.issuperset(p.nodes) for p in pipelines)
    if is_whole and self.step_secs(pipelines) <= self._find_best(len(nodes)):
      return tuple(pipelines)
    return self._layout.adapt(pipelines, nodes)

  def step_secs(self, pipelines: Sequence[Pipeline]) -> float:
    """Returns the time of a step, for a whole batch if samples are dropped."""
    cost = self.cost(pipelines)
    return cost.secs * (1.0 + cost.num_dropped / cost.num_samples)

  def pause_secs(
      self, rung: str, before: Sequence[Pipeline], after: Sequence[Pipeline]
  ) -> float:
    """Returns for how long a change stops training; see `ladder.Planner`.

    A restart from pipelines that train saves first.
    """
    durations = self._durations
    if rung == "checkpoint":
      pause_secs = durations.restart_secs + durations.load_secs
      return pause_secs + (durations.save_secs if before else 0.0)
    fixed_secs = durations.repair_secs
    if rung == "reconfigure":
      fixed_secs = durations.reconfigure_secs
    live = {n for p in (*before, *after) for n in p.nodes}
    return fixed_secs + self._copy_secs(before, after, live)

  def delay(
      self,
      decision: ladder.Decision,
      before: Sequence[Pipeline],
      *,
      when: str,
  ) -> speed_lib.Delay:
    """Returns how long a decision holds training up, but to detect losses.

    Args:
      decision: What is done.
      before: The pipelines until then.
      when: See `recovery.decide`.
    """
    rung, after = decision.rung, decision.state.pipelines
    if rung in ("none", "wait", "stop"):
      return speed_lib.Delay()
    if rung == "checkpoint":
      kept = () if decision.rolls_back else before
      return speed_lib.Delay(self.pause_secs(rung, kept, after))
    live = {*decision.state.nodes}
    if rung == "reconfigure":
      fixed_secs = self._durations.reconfigure_secs
    elif decision.repairs:
      fixed_secs = self._durations.repair_secs
    elif when == "boundary" or rung == "drop":
      return speed_lib.Delay()
    else:
      return self._speed.finish(rung, before, after)
    return speed_lib.Delay(fixed_secs + self._copy_secs(before, after, live))

  def partitions(self, num_nodes: int) -> layouts.Partitions:
    """Returns the partition of each new pipeline of so many nodes.

    Raises:
      base.InfeasibleError: There are too few nodes for one.
    """
    if num_nodes not in self._found:
      self._found[num_nodes] = self._layout.partitions(num_nodes)
    return self._found[num_nodes]

  def _find_best(self, num_nodes: int) -> float:
    """Returns the time of a step with new pipelines of so many nodes."""
    if num_nodes not in self._best_secs:
      partitions = self.partitions(num_nodes)
      places = range(sum(p.num_stages for p in partitions))
      self._best_secs[num_nodes] = self.step_secs(
          placement.make_pipelines(partitions, places, self._has_replicas)
      )
    return self._best_secs[num_nodes]

  def _copy_secs(
      self,
      before: Sequence[Pipeline],
      after: Sequence[Pipeline],
      live: Collection[int],
  ) -> float:
    """Returns how long it takes to copy the state that moves."""
    if self._profile is None or not before:
      return 0.0
    move = moves.plan_move(self._profile, before, after, live)
    return move.transfer_ms(self._profile) / 1e3

"""Failures after which every layer still has a copy.

A layer has copies on its owner and shadow, in each pipeline. While one of them
lives, training continues without a checkpoint: at once on shadows if no stage
loses owner and shadow together, else with the state of another pipeline.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
import dataclasses

from bamboo_jax import base
from bamboo_jax.plan import pipelines as pipelines_lib
from bamboo_jax.recovery import moves

_COUNTS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine")


def join(words: Sequence[str], last: str) -> str:
  """Returns "a", "a and b", or "a, b and c", if `last` is "and"."""
  *first, end = words
  return f"{', '.join(first)} {last} {end}" if first else end


def _any(count: int, what: str) -> str:
  word = _COUNTS[count] if count < len(_COUNTS) else str(count)
  return f"any {word} {what}" + "s" * (count > 1)


@dataclasses.dataclass(frozen=True)
class Survival:
  """The failures that pipelines survive without a checkpoint.

  Attributes:
    zones: Zones that may fail, each alone: every layer keeps a copy.
    fatal_zones: The other zones: each has all copies of some layer.
    shadow_zones: The `zones` after whose failure shadows suffice.
    num_zones: Any set of this many zones may fail.
    num_nodes: Any set of this many nodes may fail.
  """

  zones: tuple[str, ...]
  fatal_zones: tuple[str, ...]
  shadow_zones: tuple[str, ...]
  num_zones: int
  num_nodes: int

  def render(self) -> str:
    """Returns the survival as sentences."""
    several = len(self.zones) + len(self.fatal_zones) > 1  # Else all nodes are in it.
    may = []
    if several and self.num_zones:
      may.append(_any(self.num_zones, "zone"))
    elif several and self.zones:
      may.append(f"zone {join(self.zones, 'or')}")
    if self.num_nodes:
      may.append(_any(self.num_nodes, "node"))
    said = [f"{join(may, 'or')} may fail."] if may else []
    if not self.num_nodes:
      said.append("Some layers have one copy only: if its node fails, a checkpoint is needed.")
    if several and self.fatal_zones:
      zones = join(self.fatal_zones, "or")
      said.append(f"If zone {zones} fails, a checkpoint is needed.")
    if several and self.shadow_zones:
      said.append(f"If zone {join(self.shadow_zones, 'or')} fails, shadows take over at once.")
    return " ".join(s[0].upper() + s[1:] for s in said)


def find_survival(
    pipelines: Sequence[pipelines_lib.Pipeline], zones: Mapping[base.NodeId, str]
) -> Survival:
  """Returns the failures that `pipelines`, at least one, survive.

  A node missing in `zones` counts as a zone of its own.
  """
  held = moves.held_layers(pipelines)
  all_layers = range(pipelines[0].partition.num_layers)
  layers = [{node for node, own in held.items() if layer in own} for layer in all_layers]
  pairs = [  # Owner and shadow of each stage; without a shadow, the owner twice.
      (owner, p.roles.shadows.get(stage, owner))
      for p in pipelines
      for stage, owner in base.by_stage(p.roles.owners)
      if stage not in p.vacant
  ]
  zones = {node: f"node {node}" for node in held} | dict(zones)
  spread = [{zones[n] for n in nodes} for nodes in layers]
  together = {zones[a] for a, b in pairs if zones[a] == zones[b]}
  names = sorted(set(zones.values()))
  stay = tuple(zone for zone in names if {zone} not in spread and set() not in spread)
  return Survival(
      zones=stay,
      fatal_zones=tuple(zone for zone in names if zone not in stay),
      shadow_zones=tuple(zone for zone in stay if zone not in together),
      # One must live; 0 also without a copy.
      num_zones=max(0, min(map(len, spread)) - 1),
      num_nodes=max(0, min(map(len, layers)) - 1),
  )


def find_ending(
    held: Iterable[tuple[base.NodeId, base.StageId]], leaving: Collection[base.NodeId]
) -> tuple[base.StageId, ...]:
  """Returns the segments whose copies are all on `leaving` nodes.

  `held` has the node and the segment of each copy.
  """
  held = {*held}
  stay = {segment for node, segment in held if node not in leaving}
  return tuple(sorted({segment for _, segment in held} - stay))

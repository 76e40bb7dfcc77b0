"""Replicas: copies of a stage's state on another node, equal to the bit."""

from collections.abc import Iterable, Mapping
import dataclasses

from bamboo_jax import base
from bamboo_jax.runtime import engine as engine_lib
from bamboo_jax.runtime.phases import fingerprint


@dataclasses.dataclass(frozen=True)
class Prints:
  """Fingerprints of a state that has seen `steps` steps, by node and layer."""

  steps: base.StepId
  nodes: Mapping[base.NodeId, Mapping[str, int]]


def take_prints(engine: engine_lib.Engine, steps: base.StepId) -> Prints:
  """Returns the fingerprints of local nodes after `steps` steps; blocks.

  Empty if no layer is on more than one node.
  """
  started = {}
  has_copies = any(engine.shadows) or len(engine.owners) > 1
  for number, node in engine.nodes.items() if has_copies else ():
    # All are started before one is awaited.
    started[number] = {name: fingerprint.start(layer) for name, layer in node.state.items()}
  nodes = {
      number: {name: fingerprint.read(print_) for name, print_ in own.items()}
      for number, own in started.items()
  }
  return Prints(steps, nodes)


def compare(said: Iterable[Prints]) -> None:
  """Compares all copies of each layer: owners, replicas, in all pipelines.

  Args:
    said: The fingerprints of all members, after the same number of steps.

  Raises:
    base.ReplicaMismatchError: Two nodes differ.
  """
  said = list(said)
  layers: dict[str, dict[int, list[base.NodeId]]] = {}
  for prints in said:
    for number, own in prints.nodes.items():
      for name, value in own.items():
        layers.setdefault(name, {}).setdefault(value, []).append(number)
  for name, nodes in sorted(layers.items()):
    if len(nodes) > 1:
      # The minority first.
      groups = sorted(map(sorted, nodes.values()), key=lambda g: (len(g), g))
      raise base.ReplicaMismatchError(
          f"After step {said[0].steps} the states of layer {name!r} differ between nodes: "
          f"{' | '.join(', '.join(map(str, group)) for group in groups)}."
      )

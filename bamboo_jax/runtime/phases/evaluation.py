"""Evaluation on local nodes: forward passes without dropout.

Pipelines take microbatches in turn. Where the owners of two stages that follow
each other are in two processes, the activation takes the link that it takes in
training. All nodes go by microbatch, then by stage, so they never wait for each
other in a circle.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np

from bamboo_jax.runtime import node as node_lib
from bamboo_jax.runtime.wire import links as links_lib


def evaluate(
    nodes: Mapping[int, node_lib.Node],
    owners: Sequence[Sequence[int]],
    links: links_lib.Links,
    microbatches: Iterable[Mapping[str, np.ndarray]],
    *,
    check: Callable[[], None],
) -> dict[int, np.ndarray]:
  """Returns the loss of each microbatch that ends on a local node; blocks.

  Args:
    nodes: Local nodes by number.
    owners: For each pipeline, the node of each stage.
    links: All links of this process.
    microbatches: Held-out data, the same in all processes.
    check: Called before each pass; may raise.

  Returns:
    Sum of the losses and their weight, [2], by index of the microbatch.
  """

  losses = {}
  for index, batch in enumerate(microbatches):
    row, value = owners[index % len(owners)], None
    for stage, node in enumerate(row):
      if node not in nodes:
        continue
      check()
      spec = nodes[node].programs[stage].spec
      if stage and (source := row[stage - 1]) not in nodes:
        name = ("activation", stage - 1)
        value = links.get(name, source, node, like=spec.inputs).receive()
      value = nodes[node].evaluate(stage, value, batch)
      if not spec.is_last and (peer := row[stage + 1]) not in nodes:
        name = ("activation", stage)
        links.get(name, node, peer, like=spec.outputs).send(value)
    if row[-1] in nodes:
      losses[index] = value
  return {i: np.asarray(loss, np.float64) for i, loss in losses.items()}


def add_losses(losses: Mapping[int, np.ndarray]) -> tuple[float, float]:
  """Returns sum and weight of all losses, added in the order of microbatches.

  Args:
    losses: Sum and weight, [2], of each microbatch by its index.
  """
  total = np.sum([losses[i] for i in sorted(losses)], axis=0)
  return float(total[0]), float(total[1])

"""Device memory of the nodes of a program, predicted from costs of layers.

All nodes run one program, so all need the same:

  weights      of the stages that it holds and of both ends, as passes read them
  carry        residuals, values between stages, and sums of gradients; twice if
               the next segment may have to start again from the same arguments
  temporary    residuals and scratch memory of the epilogue, scratch memory of
               the prologue, what a backward pass recomputes of a block, and
               residuals on their way to the host
"""

from collections.abc import Sequence
import dataclasses

from bamboo_jax.plan import cost_model, memory as memory_lib
from bamboo_jax.runtime.spmd import layout as layout_lib, program as program_lib


def with_programs(
    memory: Sequence[memory_lib.NodeMemory],
    layers: Sequence[cost_model.LayerCost],
    layout: layout_lib.BlockLayout,
    sizes: Sequence[program_lib.Sizes],
) -> tuple[memory_lib.NodeMemory, ...]:
  """Returns the memory of nodes that run programs instead of rows.

  Args:
    memory: Of the nodes of a pipeline, with rows.
    layers: Costs of the layers, in model order.
    layout: Blocks of each stage.
    sizes: Of the programs, the largest of which counts.
  """
  found = [_find_fields(layers, layout, one) for one in sizes]
  fields = max(found, key=lambda fields: sum(fields.values()))
  return tuple(dataclasses.replace(node, **fields) for node in memory)


def _find_fields(
    layers: Sequence[cost_model.LayerCost], layout: layout_lib.BlockLayout, sizes: program_lib.Sizes
) -> dict[str, int]:
  """Returns the fields of `NodeMemory` that a program decides."""
  first, count = layout.blocks.first, layout.count
  block = layers[first : first + layout.blocks.period]
  before, behind = [*layers[:first]], [*layers[layout.blocks.last :]]
  read = lambda own: sum(c.copy_bytes or c.parameter_bytes for c in own)
  gradients = lambda own: sum(c.gradient_bytes for c in own)
  residuals = lambda own: sum(c.residual_bytes for c in own)
  working = lambda own: max((c.working_bytes for c in own), default=0)
  slots, value = sizes.buffers, block[-1].activation_bytes
  kept = count * residuals(block) + value
  sums = sizes.num_owned * count * gradients(block)
  sums += gradients(before) + gradients(behind)
  copies = 2 if sizes.keeps else 1  # Arguments and results.
  whole = lambda own: max(residuals(own), working(own) - gradients(own))  # Recomputed or kept.
  temporary = whole(behind) + working(behind) + working(before) + whole(block) - residuals(block)
  temporary += bool(sizes.num_offloads) * kept
  return dict(
      copy_bytes=sizes.num_held * count * read(block) + read(before + behind),
      residual_bytes=copies * slots["residuals"] * kept,
      transfer_bytes=copies * (slots["activations"] + slots["grads"]) * value,
      working_bytes=temporary + copies * sums,
  )

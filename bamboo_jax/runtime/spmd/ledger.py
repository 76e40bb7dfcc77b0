"""Counts from shapes the memory that the program holds.

The CPU backend does not tell host from device memory. Temporary arrays of
passes are left out.
"""

import dataclasses

import jax

from bamboo_jax import base
from bamboo_jax.runtime.spmd import buffers as buffers_lib
from bamboo_jax.runtime.spmd import finish
from bamboo_jax.runtime.spmd import layout as layout_lib
from bamboo_jax.runtime.spmd import program as program_lib
from bamboo_jax.runtime.spmd import state as state_lib


@dataclasses.dataclass(frozen=True)
class Ledger:
  """Bytes of one device; all devices hold the same, needed or not.

  Attributes:
    state: Parameters, optimizer slots and statistics of its own layers and of
      both ends.
    replica: The same of the blocks of the next stage.
    next_state: What a step makes of these beside them; 0 if it replaces them.
    sums: Sums of gradients and statistics, carried from tick to tick.
    buffers: Ring buffers by name, see `buffers.Buffers`; carried too.
    batch: Data of all microbatches of its pipeline.
    host_residuals: Residuals of redundant forward passes, in host memory.
    padding: For each stage, how much of all this belongs to blocks that only
      pad it, or to ends that it neither runs nor holds a replica of.
  """

  state: int
  replica: int
  next_state: int
  sums: int
  buffers: dict[str, int]
  batch: int
  host_residuals: int
  padding: tuple[int, ...]

  @property
  def carry(self) -> int:
    """Bytes carried from tick to tick."""
    return self.sums + sum(self.buffers.values())

  @property
  def device(self) -> int:
    """Bytes of device memory."""
    held = self.state + self.replica + self.next_state
    return held + self.carry + self.batch


def make_ledger(program: program_lib.StepProgram) -> Ledger:
  """Returns the ledger of a program."""
  arguments = jax.tree.map(_local_shape, program.arguments.shapes())
  state, batch, _, host = arguments
  buffers = jax.eval_shape(program.buffers)
  sums = jax.eval_shape(lambda: finish.zero_sums(state))
  own, replica = num_bytes((state.blocks, state.ends)), num_bytes(state.replica)
  is_kept = program.placement.replicas  # Beside the next state.
  return Ledger(
      state=own,
      replica=replica,
      next_state=own + replica if is_kept else 0,
      sums=num_bytes(sums),
      buffers={
          field.name: num_bytes(getattr(buffers, field.name))
          for field in dataclasses.fields(buffers)
      },
      batch=num_bytes(batch),
      host_residuals=num_bytes(host),
      padding=tuple(
          _block_padding(program, stage, state, sums, (buffers.kept, host))
          + _end_padding(program, stage, state, sums)
          for stage in range(program.placement.layout.num_stages)
      ),
  )


def num_bytes(tree: base.PyTree) -> int:
  """Returns the bytes of arrays, or of arrays of these shapes."""
  return sum(a.size * a.dtype.itemsize for a in jax.tree.leaves(tree))


def _block_padding(
    program: program_lib.StepProgram,
    stage: int,
    state: state_lib.ProgramState,
    sums: finish.Sums,
    kept: tuple[buffers_lib.Kept, buffers_lib.Kept | None],
) -> int:
  layout = program.placement.layout
  num_copies = 2 if program.placement.replicas else 1
  buffer, host = kept
  missing = layout.max_count - layout.counts[stage]
  held = num_copies * num_bytes(state.blocks)
  held += num_bytes((sums.grads, sums.stats, buffer.residuals))
  padding = held * missing // layout.max_count
  padding += _input_padding(buffer, layout, stage)
  if program.placement.replicas:
    after = (stage + 1) % layout.num_stages
    missing = layout.max_count - layout.counts[after]
    held = num_copies * num_bytes(state.replica)
    if host is not None:
      held += num_bytes(host.residuals)
      padding += _input_padding(host, layout, after)
    padding += held * missing // layout.max_count
  return padding


def _input_padding(
    kept: buffers_lib.Kept, layout: layout_lib.Layout, stage: int
) -> int:
  if kept.inputs is None:
    return 0
  room = layout.max_count - 1  # The input of the first block lies elsewhere.
  missing = room - max(layout.counts[stage] - 1, 0)
  return num_bytes(kept.inputs) * missing // room


def _end_padding(
    program: program_lib.StepProgram,
    stage: int,
    state: state_lib.ProgramState,
    sums: finish.Sums,
) -> int:
  layout, replicas = program.placement.layout, program.placement.replicas
  names = program.placement.spec.model.layer_names
  own = {names[i] for i in layout.layers(stage)}
  held, num_copies = own, 1
  if replicas:
    after = (stage + 1) % layout.num_stages
    held, num_copies = own | {names[i] for i in layout.layers(after)}, 2
  padding = 0
  for name, layer in state.ends.items():
    if name not in held:
      padding += num_copies * num_bytes(layer)
    if name not in own:
      padding += num_bytes((sums.end_grads[name], sums.end_stats[name]))
  return padding


def _local_shape(array: jax.ShapeDtypeStruct) -> jax.ShapeDtypeStruct:
  shape = array.sharding.shard_shape(array.shape)
  return jax.ShapeDtypeStruct(shape, array.dtype)

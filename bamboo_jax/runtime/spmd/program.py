"""A whole step as one program over a mesh of pipelines and stages.

Every device runs a scan over the ticks of a `ticks.TickTable`; then gradients
are summed over devices, clipped and applied, all in the same program. It calls
no function of the host and depends on its arguments alone.

`jax.shard_map` is told not to check what varies over the mesh. Otherwise the
derivative with respect to an array that is equal on all devices, such as the
embedding, would be summed over all of them inside of the branch that only the
first stage takes, and wait for ever.
"""

import functools

import flax.struct
import jax
import jax.numpy as jnp

from bamboo_jax import base
from bamboo_jax.models import model as model_lib
from bamboo_jax.runtime.spmd import arguments as arguments_lib
from bamboo_jax.runtime.spmd import block_passes
from bamboo_jax.runtime.spmd import buffers as buffers_lib
from bamboo_jax.runtime.spmd import end_passes
from bamboo_jax.runtime.spmd import finish
from bamboo_jax.runtime.spmd import state as state_lib
from bamboo_jax.runtime.spmd import tick as tick_lib
from bamboo_jax.runtime.stage import spec as spec_lib
from bamboo_jax.schedule.ticks import table as ticks_lib

PartitionSpec = jax.sharding.PartitionSpec


@flax.struct.dataclass
class Results:
  """The sums of a step.

  Attributes:
    loss: Sum of the losses and their weight, float32 [2].
    grad_norm: Of the gradient before clipping.
  """

  loss: jax.Array
  grad_norm: jax.Array


class StepProgram:
  """The program, before and after it is compiled for its mesh.

  Attributes:
    activation: Shapes of the values between stages.
    kept: Returns the shapes of the values kept in a number of slots.
  """

  def __init__(
      self,
      placement: state_lib.Placement,
      table: ticks_lib.TickTable,
      *,
      clip_norm: float | None,
      on_nonfinite: str,
      refresh: str,
  ) -> None:
    self.placement = placement
    self.table = table
    self.has_redundant = any(
        tick.redundant >= 0 for row in table.ticks for tick in row
    )
    self._clip_norm = clip_norm
    self._on_nonfinite = on_nonfinite
    self._refresh = refresh
    spec, layout = placement.spec, placement.layout
    self._blocks = block_passes.BlockPasses(spec, layout)
    self._ends = end_passes.EndPasses(spec, layout)
    shapes = spec.model.input_shapes(spec.batch)
    self.activation = shapes[layout.blocks.first]
    layers = spec_lib.split_layers(spec.state)
    names = spec.model.layer_names[layout.blocks.first :]
    self.kept = functools.partial(
        self._blocks.kept_shapes,
        [layers[name] for name in names[: layout.blocks.period]],
        self.activation,
    )
    self.arguments = arguments_lib.Arguments(
        placement,
        num_microbatches=table.num_microbatches,
        host=self.kept(table.num_microbatches) if self.has_redundant else None,
    )

  def trace(self) -> jax.stages.Traced:
    """Returns the program, not yet compiled.

    It takes what `arguments` says, and returns the next state, `Results`, and
    the buffer in host memory, which is donated. The state is donated only if
    there are no replicas: with them, what a step that failed has started from
    must still be there.
    """
    by_place = PartitionSpec(*state_lib.AXES)
    everywhere = PartitionSpec()
    by_pipeline = PartitionSpec(state_lib.PIPELINE)
    state, host = self.placement.partition, by_place
    if not self.has_redundant:
      host = None
    results = Results(everywhere, everywhere)
    program = jax.shard_map(
        self._run,
        mesh=self.placement.mesh,
        in_specs=(state, by_pipeline, everywhere, host),
        out_specs=(state, results, host),
        check_vma=False,
    )
    donated = (3,) if self.placement.replicas else (0, 3)
    jitted = jax.jit(program, donate_argnums=donated)
    return jitted.trace(*self.arguments.shapes())

  def buffers(self) -> buffers_lib.Buffers:
    """Returns the ring buffers of one device, empty."""
    return buffers_lib.make_buffers(
        self.table,
        activation=self.activation,
        kept=self.kept,
        has_redundant=self.has_redundant,
    )

  def _run(
      self,
      state: state_lib.ProgramState,
      batch: base.PyTree,
      step: jax.Array,
      host: buffers_lib.Kept | None,
  ) -> tuple[state_lib.ProgramState, Results, buffers_lib.Kept | None]:
    spec = self.placement.spec
    num_pipelines, num_stages = self.placement.mesh.devices.shape
    state = state.replace(
        blocks=_local(state.blocks), replica=_local(state.replica)
    )
    num_microbatches = self.table.num_microbatches
    first = jax.lax.axis_index(state_lib.PIPELINE) * num_microbatches
    key = lambda microbatch: model_lib.microbatch_key(
        spec.seed, step, microbatch, impl=spec.prng
    )
    body = tick_lib.TickBody(
        blocks=self._blocks,
        ends=self._ends,
        activation=self.activation,
        state=state,
        batch=_local(batch),
        keys=jax.vmap(key)(first + jnp.arange(num_microbatches)),
        num_stages=num_stages,
    )
    stage = jax.lax.axis_index(state_lib.STAGE)
    (_, sums, host), _ = jax.lax.scan(
        body.run,
        (self.buffers(), finish.zero_sums(state), _local(_local(host))),
        jnp.asarray(self.table.as_array())[:, stage],
    )
    sums = finish.reduce(sums, spec, num_pipelines=num_pipelines)
    scale, norm = finish.make_scale(sums, spec.model, clip_norm=self._clip_norm)
    state = finish.update(
        state,
        sums,
        optimizer=spec.optimizer,
        scale=scale,
        applies=finish.find_applies(
            sums, norm, on_nonfinite=self._on_nonfinite
        ),
        num_microbatches=num_pipelines * num_microbatches,
        refresh=self._refresh,
    )
    state = state.replace(
        blocks=_global(state.blocks), replica=_global(state.replica)
    )
    return state, Results(sums.loss, norm), _global(_global(host))


def _local(tree: base.PyTree) -> base.PyTree:
  """Removes the first dimension, that of the mesh."""
  return jax.tree.map(lambda a: a[0], tree)


def _global(tree: base.PyTree) -> base.PyTree:
  """Adds a first dimension, that of the mesh."""
  return jax.tree.map(lambda a: a[None], tree)

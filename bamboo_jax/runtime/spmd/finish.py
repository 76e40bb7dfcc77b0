"""From the gradients of one device to the next state, inside of the program.

The phases of rows: ties, reduce, norm, refresh, apply. Sums are added left to
right, or zero on all devices but one, so the bits of a step do not depend on
how collectives add.
"""

from collections.abc import Callable
import functools
import operator
from typing import TypeVar

import flax.struct
import jax
import jax.numpy as jnp
import optax

from bamboo_jax import base
from bamboo_jax.models import model as model_lib
from bamboo_jax.runtime.phases import ties
from bamboo_jax.runtime.spmd import branch
from bamboo_jax.runtime.spmd import state as state_lib
from bamboo_jax.runtime.stage import functions as functions_lib
from bamboo_jax.runtime.stage import spec as spec_lib
from bamboo_jax.runtime.wire import packing
from bamboo_jax.runtime.wire import share_sum

LayerState = spec_lib.LayerState
T = TypeVar("T")


@flax.struct.dataclass
class Sums:
  """Sums over the microbatches of a step, on one device, float32.

  Attributes:
    grads: Gradients of the sum of losses for the layers of a block, arrays
      [blocks, ...].
    end_grads: The same of the layers of both ends, by name.
    stats: Statistics of the layers of a block, arrays [blocks, ...].
    end_stats: The same of the layers of both ends, by name.
    loss: Sum of the losses and their weight, [2].
  """

  grads: list[base.PyTree]
  end_grads: dict[str, base.PyTree]
  stats: list[base.PyTree]
  end_stats: dict[str, base.PyTree]
  loss: jax.Array


def zero_sums(state: state_lib.ProgramState) -> Sums:
  """Returns the sums before the first microbatch."""
  zeros = lambda tree: jax.tree.map(lambda a: jnp.zeros(a.shape), tree)
  return Sums(
      grads=zeros([layer.params for layer in state.blocks]),
      end_grads=zeros({k: layer.params for k, layer in state.ends.items()}),
      stats=zeros([layer.stats for layer in state.blocks]),
      end_stats=zeros({k: layer.stats for k, layer in state.ends.items()}),
      loss=jnp.zeros(2),
  )


def reduce(sums: Sums, spec: spec_lib.StageSpec, *, num_pipelines: int) -> Sums:
  """Returns the sums over all devices; ends are then equal on all stages."""
  grads, stats, loss = _apply_packed(
      lambda a: jax.lax.psum(a, state_lib.STAGE),
      (sums.end_grads, sums.end_stats, sums.loss),
  )
  sums = sums.replace(end_grads=_tie(grads, spec), end_stats=stats, loss=loss)
  order = [(pipeline, 0) for pipeline in range(num_pipelines)]
  return share_sum.add_in_order([sums], state_lib.PIPELINE, order=order)


def make_scale(
    sums: Sums, model: model_lib.Model, *, clip_norm: float | None
) -> tuple[jax.Array, jax.Array]:
  """Returns the factor of gradients, and their norm before clipping."""
  weight = sums.loss[1]
  tied = {(l.name, tie.param) for l in model.layers for tie in l.ties}
  ends = _square(
      [
          grads
          for name, layer in sums.end_grads.items()
          for param, grads in layer.items()
          if (name, param) not in tied
      ]
  )
  by_stage = jax.lax.all_gather(_square(sums.grads), state_lib.STAGE)
  norm = jnp.sqrt(jnp.sum(by_stage) + ends) / weight
  if clip_norm is None:
    return 1.0 / weight, norm
  is_clipped = norm > clip_norm  # Not if it is not a number.
  return jnp.where(is_clipped, clip_norm / norm, 1.0) / weight, norm


def find_applies(
    sums: Sums, norm: jax.Array, *, on_nonfinite: str
) -> jax.Array:
  """Returns whether the step may change the state, as `train.sums` does."""
  total, weight = sums.loss
  if on_nonfinite == "apply":
    return weight > 0
  return (weight > 0) & jnp.isfinite(total) & jnp.isfinite(norm)


def update(
    state: state_lib.ProgramState,
    sums: Sums,
    *,
    optimizer: optax.GradientTransformation,
    scale: jax.Array,
    applies: jax.Array,
    num_microbatches: int,
    refresh: str,
) -> state_lib.ProgramState:
  """Returns the next state, without the dimension of stages as `state`.

  It is the same state unless `applies`, which is equal on all devices.

  A replica is made by `refresh`: from the final "gradient" by the same update
  as its owner, or from the updated "state".
  """

  def step(
      scale: jax.Array,
      layer: LayerState,
      grads: base.PyTree,
      stats: base.PyTree,
  ) -> LayerState:
    return functions_lib.update_layer(
        layer,
        grads,
        stats,
        optimizer=optimizer,
        scale=scale,
        num_microbatches=num_microbatches,
    )

  def step_all(
      step: Callable[..., LayerState],
      layers: T,
      grads: base.PyTree,
      stats: base.PyTree,
  ) -> T:
    def run(layers: T, scale: jax.Array) -> T:
      one = functools.partial(step, scale)
      is_layer = lambda node: isinstance(node, LayerState)
      return jax.tree.map(one, layers, grads, stats, is_leaf=is_layer)

    # What stands in the branch is compiled alike, so that a replica gets the
    # bits of its owner.
    return branch.run_if(applies, run, layers, scale)[0]

  step_blocks = jax.vmap(step, (None, 0, 0, 0))
  blocks = step_all(step_blocks, state.blocks, sums.grads, sums.stats)
  ends = step_all(step, state.ends, sums.end_grads, sums.end_stats)
  replica = None
  if state.replica is not None and refresh == "state":
    replica = _from_next_stage(blocks)
  elif state.replica is not None:
    totals = _from_next_stage((sums.grads, sums.stats))
    replica = step_all(step_blocks, state.replica, *totals)
  return state_lib.ProgramState(blocks=blocks, replica=replica, ends=ends)


def _tie(
    end_grads: dict[str, base.PyTree], spec: spec_lib.StageSpec
) -> dict[str, base.PyTree]:
  """Gives all copies of a tied parameter the sum of their gradients."""
  tied = {name: dict(grads) for name, grads in end_grads.items()}
  for group in ties.find_copies([spec]):
    parts = [end_grads[copy.layer][copy.param] for copy in group]
    for copy in group:
      tied[copy.layer][copy.param] = functools.reduce(operator.add, parts)
  return tied


def _from_next_stage(tree: base.PyTree) -> base.PyTree:
  num_stages = jax.lax.axis_size(state_lib.STAGE)
  pairs = [((s + 1) % num_stages, s) for s in range(num_stages)]
  send = lambda a: jax.lax.ppermute(a, state_lib.STAGE, pairs)
  return _apply_packed(send, tree)


def _apply_packed(
    function: Callable[[jax.Array], jax.Array], tree: base.PyTree
) -> base.PyTree:
  """Applies a collective to all arrays at once, as one buffer per dtype."""
  buffers = packing.pack(tree)
  moved = {name: function(buffer) for name, buffer in buffers.items()}
  return packing.unpack(moved, tree)


def _square(grads: base.PyTree) -> jax.Array:
  return sum((jnp.sum(g * g) for g in jax.tree.leaves(grads)), jnp.zeros(()))

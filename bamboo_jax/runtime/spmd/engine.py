"""Runs steps as one program, with the state that they work on."""

from collections.abc import Callable, Collection, Mapping, Sequence
import dataclasses
import functools
import math

import jax
import numpy as np

from bamboo_jax import base
from bamboo_jax.runtime import engine as engine_lib
from bamboo_jax.runtime import node as node_lib
from bamboo_jax.runtime.spmd import layout as layout_lib
from bamboo_jax.runtime.spmd import ledger as ledger_lib
from bamboo_jax.runtime.spmd import program as program_lib
from bamboo_jax.runtime.spmd import state as state_lib
from bamboo_jax.runtime.stage import spec as spec_lib
from bamboo_jax.schedule.ticks import table as ticks_lib


@dataclasses.dataclass(frozen=True)
class StepResult:
  """The outcome of a step.

  Attributes:
    loss: Mean loss per token of the batch, in nats; not a number without any.
    weight: Number of tokens that the loss is a mean of.
    grad_norm: Global norm of the gradient before clipping.
  """

  loss: float
  weight: float
  grad_norm: float


class SpmdEngine:
  """Pipelines whose steps are one program.

  With replicas, a step that fails leaves the state as it was; without them the
  state is donated to the program, and lost with it.
  """

  def __init__(
      self,
      whole: spec_lib.StageSpec,
      *,
      bounds: Sequence[int],
      table: ticks_lib.TickTable,
      devices: np.ndarray,
      num_microbatches: int,
      clip_norm: float | None = None,
      on_nonfinite: str = "skip",
      replicas: bool = False,
      refresh: str = "gradient",
  ) -> None:
    """Compiles nothing yet.

    Args:
      bounds: First layer of each stage, then the number of layers.
      table: What every pipeline runs.
      devices: All different, [pipelines, stages].
      num_microbatches: Of each pipeline.
      replicas: Whether devices hold the layers of the next stage too.

    Raises:
      ValueError: The stages are not made of equal blocks, the message names the
        layer that differs; or arguments do not fit each other.
    """
    engine_lib.ReplicaOptions(refresh=refresh)  # Checks it.
    if clip_norm is not None and not clip_norm > 0:
      raise ValueError(f"clip_norm must be positive or None, got {clip_norm}.")
    self.bounds = tuple(bounds)
    self.layout = layout_lib.make_layout(whole, bounds)
    devices = np.asarray(devices)
    _check(self.layout, table, devices, num_microbatches)
    mesh = jax.sharding.Mesh(devices, state_lib.AXES)
    self._placement = state_lib.Placement(whole, self.layout, mesh, replicas)
    self._program = program_lib.StepProgram(
        self._placement,
        table,
        clip_norm=clip_norm,
        on_nonfinite=on_nonfinite,
        refresh=refresh,
    )
    if self._program.has_redundant and not replicas:
      raise ValueError(
          "The table has redundant forward passes, which need replicas=True."
      )
    self._compiled: jax.stages.Compiled | None = None
    self._state: state_lib.ProgramState | None = None
    self._host: base.PyTree = None

  def compile(self) -> None:
    """Compiles the program, once."""
    if self._compiled is None:
      self._compiled = self._program.trace().lower().compile()

  def set_state(self, layers: Mapping[str, spec_lib.LayerState]) -> None:
    """Copies all layers to the devices that hold them, given by name."""
    self._state = self._placement.place(layers)

  def drop_state(self) -> None:
    """Frees the state and the results of the last step; keeps the program."""
    self._state = self._host = None

  def layer_states(self, pipeline: int = 0) -> dict[str, spec_lib.LayerState]:
    """Returns the layers of a pipeline by name, copied to host memory.

    Those of devices of other processes are left out.
    """
    read = functools.partial(self._placement.read_own, self._state)
    return self._gather(read, pipeline)

  def replica_states(self, pipeline: int = 0) -> dict[str, spec_lib.LayerState]:
    """Returns the layers as the nodes of the stages before hold them."""
    read = functools.partial(self._placement.read_replica, self._state)
    return self._gather(read, pipeline)

  def surviving_states(
      self, lost: Collection[tuple[int, int]]
  ) -> dict[str, spec_lib.LayerState]:
    """Returns the layers by name, without the memory of `lost` places."""
    layers = {}
    for place in self._places():
      if place not in lost:
        if self._placement.replicas:
          layers |= self._placement.read_replica(self._state, *place)
        layers |= self._placement.read_own(self._state, *place)
    names = self._placement.spec.model.layer_names
    return {name: layers[name] for name in names if name in layers}

  def step(self, step: int, feed: node_lib.FeedFn) -> StepResult:
    """Runs a step and blocks until its state is there."""
    self.compile()
    host, self._host = self._host, None  # It is donated.
    if host is None:
      host = self._program.arguments.make_host_buffer()
    batch = self._program.arguments.place_batch(feed)
    state, results, host = jax.block_until_ready(
        self._compiled(self._state, batch, np.uint32(step), host)
    )
    self._state, self._host = state, host
    total, weight = np.asarray(results.loss, np.float64).tolist()
    loss = total / weight if weight else math.nan
    return StepResult(loss, weight, float(results.grad_norm))

  def ledger(self) -> ledger_lib.Ledger:
    """Returns the memory that a device holds."""
    return ledger_lib.make_ledger(self._program)

  def _places(self) -> list[tuple[int, int]]:
    devices, process = self._placement.mesh.devices, jax.process_index()
    return [
        place
        for place in np.ndindex(devices.shape)
        if devices[place].process_index == process
    ]

  def _gather(
      self, read: Callable[[int, int], dict[str, base.PyTree]], pipeline: int
  ) -> dict[str, base.PyTree]:
    """Returns the results of `read` for each stage, in model order."""
    layers = {}
    for place in self._places():
      if place[0] == pipeline:
        layers |= read(*place)
    names = self._placement.spec.model.layer_names
    return {name: layers[name] for name in names if name in layers}


def _check(
    layout: layout_lib.Layout,
    table: ticks_lib.TickTable,
    devices: np.ndarray,
    num_microbatches: int,
) -> None:
  """Raises `ValueError` unless these fit each other."""
  num_stages = layout.num_stages
  if num_stages < 2:
    raise ValueError(
        "One program for all stages needs at least 2 of them, got "
        f"{num_stages}."
    )
  if devices.ndim != 2 or devices.shape[1] != num_stages:
    raise ValueError(
        f"devices must be [pipelines, {num_stages} stages], got an array of "
        f"shape {devices.shape}."
    )
  if len(set(devices.flat)) != devices.size:
    raise ValueError(
        "One program for all stages needs a device of its own for each of "
        f"{devices.size} nodes, got {len(set(devices.flat))}; "
        f"{layout_lib.ADVICE}."
    )
  if (table.num_stages, table.num_microbatches) != (
      num_stages,
      num_microbatches,
  ):
    raise ValueError(
        f"The table is of {table.num_stages} stages and "
        f"{table.num_microbatches} microbatches, not of {num_stages} and "
        f"{num_microbatches}."
    )

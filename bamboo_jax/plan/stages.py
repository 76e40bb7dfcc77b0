"""Costs of stages, from the costs of their layers."""

from collections.abc import Callable, Sequence
import dataclasses
from typing import Any

from bamboo_jax import base
from bamboo_jax.plan import cost_model, partition as partition_lib
from bamboo_jax.schedule import costs as costs_lib


def layers_by_stage(
    profile: cost_model.Profile, partition: partition_lib.Partition
) -> list[list[cost_model.LayerCost]]:
  """Returns the costs of the layers of each stage."""
  return [
      [profile.layers[layer] for layer in partition.layers(stage)]
      for stage in base.stages(partition.num_stages)
  ]


def busy_ms(costs: costs_lib.StageCosts, owners: Sequence[base.NodeId]) -> dict[base.NodeId, float]:
  """Returns the time of the passes of a microbatch, by node.

  `owners` is the node of each stage.
  """
  busy: dict[base.NodeId, float] = {}
  for node, *passes_ms in zip(owners, costs.forward_ms, costs.backward_ms, strict=True):
    busy[node] = busy.get(node, 0.0) + sum(passes_ms)
  return busy


def stage_costs(
    partition: partition_lib.Partition, profile: cost_model.Profile
) -> costs_lib.StageCosts:
  """Returns the costs of the stages of `partition`, as schedules need them.

  Every pass and every transfer is charged one dispatch in addition.

  Raises:
    ValueError: `partition` does not split as many layers as `profile` has.
  """
  if partition.num_layers != len(profile.layers):
    raise ValueError(
        f"partition splits {partition.num_layers} layers, but the profile has "
        f"{len(profile.layers)}."
    )
  stages = layers_by_stage(profile, partition)
  dispatch_ms = profile.dispatch_ms

  def sums(value: Callable[[cost_model.LayerCost], Any]) -> tuple[Any, ...]:
    return tuple(sum(map(value, stage)) for stage in stages)

  def times(value: Callable[[cost_model.LayerCost], float]) -> tuple[float, ...]:
    return tuple(dispatch_ms + ms for ms in sums(value))

  sizes = tuple(stage[-1].activation_bytes for stage in stages)
  return costs_lib.StageCosts(
      forward_ms=times(lambda c: c.forward_ms),
      backward_ms=times(lambda c: c.backward_ms),
      redundant_ms=times(lambda c: c.forward_ms if c.redundant_ms is None else c.redundant_ms),
      transfer_ms=tuple(dispatch_ms + profile.transfer_ms(size) for size in sizes[:-1]),
      activation_bytes=sizes,
      residual_bytes=sums(lambda c: c.residual_bytes),
  )


def place_residuals(
    costs: costs_lib.StageCosts,
    host_bytes_per_ms: float | None,
    *,
    num_microbatches: int,
    free_bytes: Sequence[int] | None,
) -> tuple[costs_lib.StageCosts, str]:
  """Returns costs of redundant passes, and where their residuals wait for a failover.

  They stay on the "device" if those of a whole step fit in its memory; else they
  are copied to the "host". Node `s` is the shadow of stage `s + 1`, the last node
  that of stage 0.

  Args:
    host_bytes_per_ms: Rate of the link to host memory; None: costs have the
      copies already.
    free_bytes: Device memory that each node does not need; None: no limit.
  """
  if host_bytes_per_ms is None:
    return costs, "host"
  kept = [num_microbatches * size for size in costs.residual_bytes]
  fits = free_bytes is None or all(
      size <= free for size, free in zip(kept[1:] + kept[:1], free_bytes, strict=True)
  )
  redundant_ms = costs.forward_ms
  if not fits:
    pairs = zip(costs.forward_ms, costs.residual_bytes, strict=True)
    redundant_ms = tuple(ms + size / host_bytes_per_ms for ms, size in pairs)
  costs = dataclasses.replace(costs, redundant_ms=redundant_ms)
  return costs, "device" if fits else "host"

"""Where the residuals of redundant forward passes wait for a failover.

They stay on the device while they fit in its memory. Otherwise they are copied
to host memory: all of them if the link carries them in the time that nodes
wait, else only the inputs of units, from which a failover recomputes the rest.

  device   residuals, on the device; no copy
  host     residuals, over the link
  inputs   inputs of units, over the link
"""

from collections.abc import Sequence
import dataclasses
from typing import NamedTuple

from bamboo_jax.plan import cost_model, partition as partition_lib, stages as stages_lib
from bamboo_jax.schedule import costs as costs_lib, timeline as timeline_lib

PLACES = ("device", "host", "inputs")


class PlacedResiduals(NamedTuple):
  """Costs of redundant passes, and the place of residuals in `PLACES`."""

  costs: costs_lib.StageCosts
  place: str


def place(
    profile: cost_model.Profile,
    partition: partition_lib.Partition,
    costs: costs_lib.StageCosts,
    timeline: timeline_lib.Timeline,
    *,
    num_microbatches: int,
    free_bytes: Sequence[int] | None,
) -> PlacedResiduals:
  """Chooses where residuals of redundant passes wait; returns the costs, too.

  Costs stay as they are, and residuals on the host, if the profile has no link
  to host memory. `timeline` has the passes without redundant ones; see
  `choose_place` for the rest.
  """
  rate, bubbles = profile.host_bytes_per_ms, timeline.bubbles
  if rate is None:
    return PlacedResiduals(costs, "host")
  chosen = choose_place(
      costs,
      num_microbatches=num_microbatches,
      free_bytes=free_bytes,
      wait_ms=[timeline.span_ms * b for _, b in sorted(bubbles.items())],
      host_bytes_per_ms=rate,
  )
  input_bytes = [
      sum(layer.activation_bytes for layer in stage)
      for stage in stages_lib.layers_by_stage(profile, partition)
  ]
  costs = with_place(costs, chosen, host_bytes_per_ms=rate, input_bytes=input_bytes)
  return PlacedResiduals(costs, chosen)


def choose_place(
    costs: costs_lib.StageCosts,
    *,
    num_microbatches: int,
    free_bytes: Sequence[int] | None,
    wait_ms: Sequence[float],
    host_bytes_per_ms: float,
) -> str:
  """Returns where residuals wait, one of `PLACES`, that suits every shadow.

  Node `s` is the shadow of stage `s + 1`, the last node that of stage 0.

  Args:
    num_microbatches: Passes of each stage in a step, all of them redundant at
      worst.
    free_bytes: Device memory that each node does not need; None: no limit.
    wait_ms: Time that each node waits in a step.
    host_bytes_per_ms: Rate of the link to host memory.
  """
  stages = range(costs.num_stages)
  kept = [num_microbatches * costs.residual_bytes[(node + 1) % costs.num_stages] for node in stages]
  if free_bytes is None or all(kept[n] <= free_bytes[n] for n in stages):
    return "device"
  if all(kept[n] / host_bytes_per_ms <= wait_ms[n] for n in stages):
    return "host"
  return "inputs"


def with_place(
    costs: costs_lib.StageCosts, place: str, *, host_bytes_per_ms: float, input_bytes: Sequence[int]
) -> costs_lib.StageCosts:
  """Returns the costs with the time of copying residuals of redundant passes.

  The place, one of `PLACES`, decides what is copied; `input_bytes` are the
  inputs of the units of each stage.
  """
  copied = {"device": [0] * costs.num_stages, "host": costs.residual_bytes, "inputs": input_bytes}[
      place
  ]
  times = zip(costs.forward_ms, copied, strict=True)
  return dataclasses.replace(
      costs, redundant_ms=tuple(ms + size / host_bytes_per_ms for ms, size in times)
  )

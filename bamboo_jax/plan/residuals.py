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

from bamboo_jax.schedule import costs as costs_lib

PLACES = ("device", "host", "inputs")


def choose_place(
    costs: costs_lib.StageCosts,
    *,
    num_microbatches: int,
    free_bytes: Sequence[int] | None,
    wait_ms: Sequence[float],
    host_bytes_per_ms: float,
) -> str:
  """Returns one of `PLACES`; every shadow must be able to afford it.

  Node `s` is the shadow of stage `s + 1`, the last node that of stage 0.

  Args:
    costs: Of the stages of a pipeline.
    num_microbatches: Passes of each stage in a step, all of them redundant at
      worst.
    free_bytes: Device memory that each node does not need; None: no limit.
    wait_ms: Time that each node waits in a step.
    host_bytes_per_ms: Rate of the link to host memory.
  """
  stages = range(costs.num_stages)
  kept = [
      num_microbatches * costs.residual_bytes[(node + 1) % costs.num_stages]
      for node in stages
  ]
  if free_bytes is None or all(kept[n] <= free_bytes[n] for n in stages):
    return "device"
  if all(kept[n] / host_bytes_per_ms <= wait_ms[n] for n in stages):
    return "host"
  return "inputs"


def with_place(
    costs: costs_lib.StageCosts,
    place: str,
    *,
    host_bytes_per_ms: float,
    input_bytes: Sequence[int],
) -> costs_lib.StageCosts:
  """Returns the costs with redundant passes that copy what `place` says.

  `input_bytes` are the inputs of the units of each stage.
  """
  copied = {
      "device": [0] * costs.num_stages,
      "host": costs.residual_bytes,
      "inputs": input_bytes,
  }[place]
  times = zip(costs.forward_ms, copied, strict=True)
  return dataclasses.replace(
      costs,
      redundant_ms=tuple(ms + size / host_bytes_per_ms for ms, size in times),
  )

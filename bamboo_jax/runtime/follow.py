"""Ends a transfer of any kind that another process has begun."""

from collections.abc import Sequence
from typing import Any

from bamboo_jax.runtime import links as links_lib
from bamboo_jax.runtime import spec as spec_lib
from bamboo_jax.runtime import sums as sums_lib

PyTree = Any


def follow(
    channel: str,
    specs: Sequence[spec_lib.StageSpec],
    links: links_lib.Links,
    sums: sums_lib.Sums,
    *,
    like: Sequence[PyTree],
) -> None:
  """Takes part in a transfer with nothing to say; blocks.

  Args:
    channel: Name of the transfer, from `gate.Gate.close`.
    specs: One entry per stage.
    links: All links of this process.
    sums: All sums of this process.
    like: Shapes of what replicas are sent, by stage.
  """
  kind, *rest = channel.partition("@")[0].split("/")
  stage = int(rest[0])
  match kind:
    case "sum":
      sums.follow(channel)
      return
    case "activation" | "grad":
      value = specs[stage].outputs
    case "refresh":
      value = like[stage]
    case "tie":
      value = specs[stage].accumulator.grads[rest[1]][rest[2]]
    case _:
      raise AssertionError(channel)
  links.follow(channel, (kind, stage, *rest[1:]), like=value)

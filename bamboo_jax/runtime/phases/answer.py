"""Ends unwanted transfers; `cluster.settle` finds which and for whom.

Who has to answer what is found by `cluster.settle`.
"""

from bamboo_jax.cluster import settle
from bamboo_jax.runtime import engine as engine_lib
from bamboo_jax.runtime.phases import reduce


def answer(engine: engine_lib.Engine, channel: settle.Channel) -> None:
  """Ends a transfer that another process has begun; blocks."""
  match channel.kind:
    case "meet":
      engine.preconnections.answer(channel)
    case "sum":
      reduce.answer(engine, channel)
    case _:
      engine.links.answer(channel)

"""Brings replicas up to date, before a step is committed.

A replica gets the final gradient and applies the same update as its owner:
equal states, equal gradients and one program on two devices, so equal bits. Or
it gets the updated state, which the owner then computes before the commit.
"""

import jax

from bamboo_jax.cluster import settle
from bamboo_jax.runtime import engine as engine_lib
from bamboo_jax.runtime.phases import apply
from bamboo_jax.runtime.phases import reduce


def refresh(engine: engine_lib.Engine, scale: float) -> int:
  """Sends each shadow its gradients or state; returns the bytes received."""
  nodes, results = engine.nodes, engine.results
  results.received, results.proposed = {}, {}
  values = reduce.owned_totals(engine)
  sends_state = engine.replicas.refresh == "state"
  if sends_state and any(engine.shadows):
    for (stage, number), total in values.items():
      results.proposed[stage, number] = apply.update_stage(
          engine, nodes[number], stage, total, scale=scale, program="propose"
      )
    values = results.proposed
  received = {}
  for owners, shadows in zip(engine.owners, engine.shadows, strict=True):
    for stage, shadow in sorted(shadows.items()):
      owner = owners[stage]
      if owner not in nodes and shadow not in nodes:
        continue
      link = engine.links.get(find_channel(stage, owner, shadow))
      if owner in nodes:
        link.send(values[stage, owner])
      if shadow in nodes:
        received[stage, shadow] = link.receive()
  if sends_state:
    results.proposed |= received
  else:
    results.received = received
  return sum(a.nbytes for a in jax.tree.leaves(list(received.values())))


def find_channel(stage: int, owner: int, shadow: int) -> settle.Channel:
  """Returns the channel on which a replica is refreshed."""
  return settle.Channel("refresh", (owner, shadow), (stage,))

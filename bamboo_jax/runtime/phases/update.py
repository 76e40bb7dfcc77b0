"""Updates the state of owners and replicas: `refresh`, commit, `apply`.

Either a replica receives the final gradient and applies the same update as its
owner: equal states, equal gradients and one program on two devices give equal
bits. Or it receives the updated state, which the owner then computes before the
commit. Frozen parameters never change, so they are not sent.

     owner                              shadow
  1.   | has the sum of all shares         |
  2.   | state: computes the next one      |
  3.   |---- gradient or next state ------>|  unit by unit
  4. commit                             commit
  5.   | updates, or takes the next state  |  the same

A death before 4 leaves both with the state before the step.
"""

from bamboo_jax.runtime import engine as engine_lib
from bamboo_jax.runtime.phases import reduce
from bamboo_jax.runtime.stage import spec as spec_lib
from bamboo_jax.schedule import channel as channel_lib


def refresh(engine: engine_lib.Engine, scale: float) -> int:
  """Sends each shadow its gradients or state; returns the bytes received."""
  nodes, results = engine.nodes, engine.results
  results.received, results.proposed = {}, {}
  values = reduce.owned_totals(engine)
  sends_state = engine.replicas.refresh == "state"
  if sends_state and any(engine.shadows):
    for (stage, number), total in values.items():
      # Not donated: the step may still fail.
      results.proposed[stage, number] = nodes[number].update(
          stage, total, scale, engine.num_microbatches, donate=False
      )
    values = results.proposed
  received, num_bytes = {}, 0
  for owners, shadows in zip(engine.owners, engine.shadows, strict=True):
    for stage, shadow in sorted(shadows.items()):  # One order at all ends.
      owner = owners[stage]
      if owner not in nodes and shadow not in nodes:
        continue
      units, parts = engine.specs[stage].units, []
      for number, unit in enumerate(units):
        link = engine.links.get(channel_lib.Channel("refresh", (owner, shadow), (stage, number)))
        if owner in nodes:
          part = spec_lib.to_unit(values[stage, owner], unit)
          if sends_state:
            params = spec_lib.drop_frozen(unit, part.params)
            part = part.replace(params=params)
          link.send(part)
        if shadow in nodes:
          part = link.receive()
          num_bytes += spec_lib.nbytes(part)
          if sends_state:
            old = spec_lib.to_unit(nodes[shadow].state[stage], unit)
            part = spec_lib.add_frozen(part, old)
          parts.append(part)
      if parts:
        received[stage, shadow] = spec_lib.from_units(parts, units)
  if sends_state:
    results.proposed |= received
  else:
    results.received = received
  return num_bytes


def apply(engine: engine_lib.Engine, scale: float) -> None:
  """Updates all stages and replicas of local nodes; donates their state.

  Local, after the commit.
  """
  totals = {**reduce.owned_totals(engine), **engine.results.received}
  proposed = engine.results.proposed
  for number, node in engine.nodes.items():
    for stage in list(node.state):
      state = proposed.pop((stage, number), None)
      if state is None:
        total = totals[stage, number]
        state = node.update(stage, total, scale, engine.num_microbatches)
      node.state[stage] = state
      is_replica = any(s.get(stage) == number for s in engine.shadows)
      if is_replica and engine.replicas.slots == "host":
        # The update needs them on the device.
        node.state[stage] = node.with_slots(stage, "pinned_host")

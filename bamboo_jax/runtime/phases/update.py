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

import functools

from bamboo_jax.runtime import engine as engine_lib, places
from bamboo_jax.runtime.stage import spec as spec_lib
from bamboo_jax.schedule import channel as channel_lib


def refresh(engine: engine_lib.Engine, scale: float) -> None:
  """Sends each shadow the gradients of its owner, or the owner's next state."""
  nodes, sends_state = engine.nodes, engine.replicas.refresh == "state"
  for node in nodes.values():
    node.store.proposed = {}  # A death may have changed roles since.
  find_target = functools.partial(places.of_state, model=engine.specs[0].model.name)
  for roles in engine.roles:
    for stage, shadow in roles.shadows.items():  # Sorted: one order at all ends.
      owner = roles.owners[stage]
      for unit in engine.specs[stage].units if nodes.keys() & {owner, shadow} else ():
        channel = channel_lib.Channel("refresh", (owner, shadow), (unit.first,))
        trained = functools.partial(spec_lib.without_frozen, unit)
        if node := nodes.get(owner):
          value = node.store.totals[unit.first]
          if sends_state:  # Not donated: the step may still fail.
            state = node.update(unit, value, scale, engine.num_microbatches, donate=False)
            node.store.proposed[unit.first], value = state, trained(state)
          engine.links.send(channel, value, find_target)
        if node := nodes.get(shadow):
          like = trained(unit.shapes) if sends_state else unit.accumulator
          value = engine.links.receive(channel, like, find_target)
          if sends_state:
            old = spec_lib.take(unit, node.state)
            node.store.proposed[unit.first] = spec_lib.add_frozen(value, old)
          else:
            node.store.totals[unit.first] = value


def apply(engine: engine_lib.Engine, scale: float) -> None:
  """Updates all stages and replicas of local nodes; donates their state.

  Local, after the commit.
  """
  for node in engine.nodes.values():
    for first, unit in engine.units.items():
      if unit.names[0] in node.state:
        state = node.store.proposed.pop(first, None)
        if state is None:
          total = node.store.totals[first]
          state = node.update(unit, total, scale, engine.num_microbatches)
        node.state |= spec_lib.by_layer(unit, state)
  engine.move_slots()  # The update needs them on the device.

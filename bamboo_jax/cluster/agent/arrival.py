"""How a node comes to a run: at its beginning, later, or to begin it anew."""

import asyncio

from bamboo_jax.cluster.agent import options as agent_options
from bamboo_jax.cluster.sessions import services as services_lib
from bamboo_jax.cluster.store import registry as registry_lib

_LOOK_SECS = 0.1  # Between two looks at the store.


async def begins_anew(
    registry: registry_lib.Registry, options: agent_options.Options
) -> bool:
  """Returns whether nobody is left of the run, so that it begins anew."""
  while True:
    if await asyncio.to_thread(registry.begin_anew):
      return True
    view = await asyncio.to_thread(registry.read_view)
    if view is None or view.number > options.after_view:
      return False
    await asyncio.sleep(_LOOK_SECS)  # Others have yet to end.


async def take_number(
    registry: registry_lib.Registry,
    services: services_lib.Services,
    options: agent_options.Options,
    *,
    is_first: bool,
) -> int:
  """Returns the number of a node, once it is known who begins.

  Args:
    registry: The store.
    services: The coordination services.
    options: Of the agent.
    is_first: Whether it may be one of those that the run begins with.
  """
  ticket = -1
  while ticket < 0 or await services.is_late(ticket):
    ticket = await asyncio.to_thread(
        registry.take_ticket, options.max_nodes, zone=options.zone
    )
  while is_first and ticket < options.num_nodes:
    zones = await asyncio.to_thread(registry.zones)
    if zones.keys() >= set(range(options.num_nodes)):
      first = {t: zones[t] for t in range(options.num_nodes)}
      return options.place(first)[ticket]
    await asyncio.sleep(_LOOK_SECS)
  return ticket

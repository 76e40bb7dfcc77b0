"""The options of an agent."""

from collections.abc import Callable, Sequence
import dataclasses
from typing import Any

from bamboo_jax.cluster import detection
from bamboo_jax.cluster import notices as notices_lib
from bamboo_jax.cluster.sessions import eras as eras_lib


@dataclasses.dataclass(frozen=True)
class Options:
  """The options of an agent; `notices`, if given, polls for preemptions.

  Attributes:
    workdir: Folder of the run's files, shared by all nodes.
    host: Where to listen, and how others reach it.
    num_nodes: Number of nodes that the first view waits for.
    max_nodes: Number of nodes, dead ones included, that a run can have; None
      for any.
    era: The only era there is, if the coordinator serves none by the store.
    place: Returns the numbers of the nodes to begin with, in place of those in
      the order of their coming, from the zone of each.
    config: What all nodes must agree on, by name; plain JSON values.
    command: Starts the worker; added are name and number of the node, for how
      many seconds the agent has been there, and the number of the socket.
  """

  run: str
  name: str
  zone: str
  workdir: str
  host: str
  num_nodes: int
  max_nodes: int | None
  place: Callable[[dict[int, str]], dict[int, int]]
  config: dict[str, Any]
  command: Sequence[str]
  log: str
  limits: detection.Limits
  notices: notices_lib.Poller | None = None
  era: eras_lib.Era | None = None

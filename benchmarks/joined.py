"""How the processes of a benchmark reach each other: node k has stage k.

Rows use the transport, as in a cluster; programs of the executor `spmd` run in
children of all processes at once.
"""

from collections.abc import Sequence

import jax

from bamboo_jax import base, config as config_lib
from bamboo_jax.runtime.wire import endpoints, links as links_lib, transport as transport_lib
from bamboo_jax.schedule import channel as channel_lib
from bamboo_jax.train import run


class Joined:
  """This process, and what joins it with those of the other stages.

  Attributes:
    rank: The stage, and the node, of this process.
    transport: Between all processes.
    devices: That of this process, by node.
    processes: Runs programs in children of all processes; None of rows.
  """

  def __init__(self, config: config_lib.Config, *, rank: int) -> None:
    self.rank = rank
    make_ring = run.fork_children(config, host="127.0.0.1")
    self._others = {*range(config.pipeline.num_stages)} - {rank}
    self.transport = transport_lib.Transport(
        rank, run="benchmark", endpoint=endpoints.UnixEndpoint()
    )
    self._attempt = 0
    self.processes = make_ring and make_ring(base.NodeId(rank), self.transport)
    self.devices = {rank: jax.devices()[0]}

  @property
  def device(self) -> jax.Device:
    """The device of this process."""
    return self.devices[self.rank]

  def connect(self, addresses: Sequence[str]) -> None:
    """Tells where all processes are reached, by rank."""
    self.transport.set_addresses(dict(enumerate(addresses)))
    self.wait()

  def begin(self) -> None:
    """Begins a step in all processes, which have ended the one before."""
    self._attempt += 1
    self.transport.begin(self._attempt)

  def wait(self) -> None:
    """Blocks until all processes have called this."""
    for node in self._others:
      self.transport.send(node, "barrier", [])
    for node in self._others:
      self.transport.receive(node, "barrier")

  def link(self, kind: str, source: int, destination: int, like: base.PyTree) -> links_lib.Link:
    """Returns a link for values like `like`, in all processes or its ends."""
    return links_lib.SocketLink(
        self.transport, channel_lib.Channel(kind, (source, destination)), like=like, to=self.device
    )

  def close(self) -> None:
    """Drops all connections, and what they leave in the file system."""
    self.transport.close()

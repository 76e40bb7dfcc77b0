"""The state of an agent as metrics for Prometheus, on a port of its own."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import prometheus_client
from prometheus_client import core
from prometheus_client import registry as registry_lib

from bamboo_jax.cluster.agent import state as state_lib


class Sample(NamedTuple):
  """One number, without the prefix "bamboo_" of its name."""

  name: str
  meaning: str
  value: float


def find_samples(state: state_lib.State) -> list[Sample]:
  """Returns what an agent knows in numbers; pure.

  The metrics of steps are known to the agent whose worker writes the log; of
  others they are absent, or old: see "reported_step".
  """
  view, status = state.roster.view, state.status
  samples = [
      Sample("view", "Number of the current view.", view.number),
      Sample("members", "Nodes in the view.", len(view.members)),
      Sample("leaving", "Members about to be preempted.", len(view.leaving)),
      Sample(
          "is_member", "Whether this node is in it.", state.roster.is_at_work
      ),
  ]
  if "steps" in status:
    samples.append(
        Sample("reported_step", "Last step of its worker.", status["steps"])
    )
  samples += [
      Sample(f"step_{name}", f"{name} of that step.", value)
      for name, value in status.get("metrics", {}).items()
      if isinstance(value, int | float)
  ]
  return samples


class _Collector(registry_lib.Collector):

  def __init__(self, state: Callable[[], state_lib.State | None]) -> None:
    self._state = state

  def collect(self) -> Iterator[core.Metric]:
    """Yields the metrics at this moment."""
    state = self._state()
    for name, meaning, value in [] if state is None else find_samples(state):
      found = core.GaugeMetricFamily(
          f"bamboo_{name}", meaning, labels=("run", "node", "zone")
      )
      options = state.options
      found.add_metric([options.run, options.name, options.zone], float(value))
      yield found


def serve(
    port: int, *, host: str, state: Callable[[], state_lib.State | None]
) -> int:
  """Serves the metrics in a daemon thread from now on; returns the port.

  `state` returns that of the present agent. Raises `OSError` if the port is in
  use.
  """
  registry = prometheus_client.CollectorRegistry()
  registry.register(_Collector(state))
  server, _ = prometheus_client.start_http_server(
      port, addr=host, registry=registry
  )
  return server.server_port

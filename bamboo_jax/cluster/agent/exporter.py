"""The state of an agent as metrics for Prometheus, on a port of its own."""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import prometheus_client
from prometheus_client import core
from prometheus_client import registry as registry_lib

from bamboo_jax.cluster.agent import state as state_lib


class Sample(NamedTuple):
  """A metric and its value; `name` lacks the prefix "bamboo_"."""

  name: str
  meaning: str
  value: float


def find_samples(state: state_lib.AgentState) -> list[Sample]:
  """Returns the metrics of an agent; pure.

  Only an agent whose worker writes the log knows the metrics of steps. Those of
  other agents are absent or outdated: see "reported_step".
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

  def __init__(self, state: Callable[[], state_lib.AgentState | None]) -> None:
    self._state = state

  def collect(self) -> Iterator[core.Metric]:
    """Yields the metrics at this moment."""
    if (state := self._state()) is None:
      return
    for name, meaning, value in find_samples(state):
      found = core.GaugeMetricFamily(
          f"bamboo_{name}", meaning, labels=("run", "node", "zone")
      )
      options = state.options
      found.add_metric([options.run, options.name, options.zone], float(value))
      yield found


def serve(
    port: int, *, host: str, state: Callable[[], state_lib.AgentState | None]
) -> int:
  """Serves the metrics in a daemon thread; returns the port.

  `state` returns the state of the current agent, or None before there is one.
  Raises `OSError` if the port is in use.
  """
  registry = prometheus_client.CollectorRegistry()
  registry.register(_Collector(state))
  server, _ = prometheus_client.start_http_server(
      port, addr=host, registry=registry
  )
  return server.server_port

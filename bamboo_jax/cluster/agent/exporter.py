"""The state of an agent as metrics for Prometheus, on a port of its own."""

from collections.abc import Callable, Iterator
import pathlib
from typing import Any, NamedTuple

import prometheus_client
from prometheus_client import core, registry as registry_lib

from bamboo_jax.cluster.agent import agent as agent_lib
from bamboo_jax.net import addresses, web

_MAX_CALLERS = 16
_PATIENCE_SECS = 5.0  # With a caller that says nothing.

# What a writer reports about its last step under other names.
_NAMES = {"usd": "cost_dollars"}
# Endings of names in the log, that of the base unit, and its size.
_UNITS = (("_ms", "_seconds", 1e-3), ("_pct", "_ratio", 1e-2), ("_per_sec", "_per_second", 1.0))
_TOTALS = {
    "deaths": "Nodes with a stage that died",
    "recoveries": "Views in which such nodes were lost",
    "pause_seconds": "Seconds from such a view until the step ended",
}


class Sample(NamedTuple):
  """A metric and its value; `name` lacks the prefix "bamboo_".

  A name that ends in "_total" is that of a counter; others are gauges.
  """

  name: str
  meaning: str
  value: float


def find_samples(agent: agent_lib.Agent) -> Iterator[Sample]:
  """Yields the metrics of an agent, in base units; pure.

  Only an agent whose worker writes the log knows the metrics of steps, and the
  counts since that worker started. Those of other agents are absent or
  outdated: see "step".
  """
  view, status = agent.roster.view, agent.status
  yield Sample("view", "Number of the current view.", view.number)
  yield Sample("members", "Nodes in the view.", len(view.members))
  yield Sample("leaving", "Members about to be preempted.", len(view.leaving))
  yield Sample("is_member", "Whether this node is in it.", agent.roster.is_at_work)
  if "steps" in status:
    yield Sample("step", "Steps done.", status["steps"])
  for name, value in status.get("metrics", {}).items():
    if isinstance(value, int | float):
      yield _convert(name, value)
  for name, meaning in _TOTALS.items():
    if (value := status.get("totals", {}).get(name)) is not None:
      yield Sample(f"{name}_total", f"{meaning}, since its worker started.", value)


def _convert(name: str, value: float) -> Sample:
  """Returns a metric of the last step in base units."""
  meaning = f"{name} of the last step, in base units."
  for ending, unit, size in _UNITS:
    if name.endswith(ending):
      return Sample(name.removesuffix(ending) + unit, meaning, size * value)
  return Sample(_NAMES.get(name, name), meaning, value)


class _Collector(registry_lib.Collector):

  def __init__(self, agent: Callable[[], agent_lib.Agent | None]) -> None:
    self._agent = agent

  def collect(self) -> Iterator[core.Metric]:
    """Yields the metrics at this moment."""
    if (agent := self._agent()) is None:
      return
    for name, meaning, value in find_samples(agent):
      make: Any = core.GaugeMetricFamily
      if name.endswith("_total"):
        make = core.CounterMetricFamily
      found = make(f"bamboo_{name}", meaning, labels=("run", "node", "zone"))
      options = agent.options
      run = pathlib.Path(options.workdir).absolute().name
      found.add_metric([run, options.name, options.zone], float(value))
      yield found


def serve(port: int, *, host: str, agent: Callable[[], agent_lib.Agent | None]) -> int:
  """Serves the metrics in a daemon thread; returns the port.

  `agent` returns the current one, or None before there is one.
  Raises `OSError` if the port is in use.
  """
  registry = prometheus_client.CollectorRegistry()
  registry.register(_Collector(agent))
  handler: Any = prometheus_client.MetricsHandler.factory(registry)
  handler.timeout = _PATIENCE_SECS
  address = addresses.find(host, port)
  bound: int = web.WebServer(address, handler, most=_MAX_CALLERS, name="metrics").server_address[1]
  return bound

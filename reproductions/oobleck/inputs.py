"""The inputs of Oobleck's evaluation: models, constants, published traces.

Throughput by number of nodes, constants and traces are CSV files in `third_party/published`.
"""

from collections.abc import Mapping
import csv
import dataclasses
import pathlib

from bamboo_jax.traces import trace as trace_lib

Event, Trace = trace_lib.Event, trace_lib.Trace

SYSTEMS = ("oobleck", "varuna", "bamboo")
NUM_STAGES = 12
MIN_NODES, MAX_NODES = 15, 30  # Numbers of nodes with a known throughput.

_STUCK_MS = 10**12  # Step time where the throughput is 0.

_THROUGHPUT = "oobleck_throughput_by_nodes.csv"
_CONSTANTS = "oobleck_simulator_constants.csv"
_TRACES = "oobleck_traces.csv"
_RESULTS = "oobleck_simulated.csv"
_CANNOT_RUN = "OOM"

# Further digits of some throughputs, by system and model.
_DIGITS = {
    ("varuna", "GPT-3-6.7b"): (5.2406, 5.0969, 4.5034, 3.9538, 3.0164),
    ("bamboo", "GPT-2"): (27.0296, 22.5246, 16.8935, 11.2623),
    ("bamboo", "BERT-large"): (119.2547, 99.3789, 74.5342, 49.6894),
}
# Varuna's restart of BERT-large after the first, by number of nodes.
_RESTART_MS = {
    "BERT-large": {15: 71_300, 27: 49_100, 28: 67_600, 29: 67_600, 30: 71_300}
    | {n: 112_000 - 3_700 * (26 - n) for n in range(16, 27)}
}


def clip(num_nodes: int) -> int:
  """Returns the number of nodes whose figures stand for `num_nodes`."""
  return min(max(num_nodes, MIN_NODES), MAX_NODES)


@dataclasses.dataclass(frozen=True)
class Model:
  """The inputs of the evaluation for a model.

  Attributes:
    throughput: Samples per second by system, then by number of nodes. Systems
      that could not run the model are missing.
    idle_gpus: GPUs that Varuna leaves idle, by number of nodes.
    reconfigure_ms: How long nodes gather, Oobleck.
    restart_ms: Time of a restart, Varuna, checkpoint included.
    restart_ms_by_nodes: Times of later restarts, if they depend on the number
      of nodes.
    checkpoint_ms: Time of a checkpoint, Varuna.
    local_ms: How long nodes gather at the end of a step, Bamboo.
  """

  name: str
  samples_per_step: int
  throughput: Mapping[str, Mapping[int, float]]
  idle_gpus: Mapping[int, int]
  reconfigure_ms: int
  restart_ms: int
  restart_ms_by_nodes: Mapping[int, int] | None
  checkpoint_ms: int
  local_ms: int

  def step_ms(self, system: str, num_nodes: int) -> int:
    """Returns the time of a step of `system` with `num_nodes` ready."""
    samples_per_sec = self.throughput[system][clip(num_nodes)]
    if not samples_per_sec:
      return _STUCK_MS
    return int(self.samples_per_step / samples_per_sec * 1000)


def read_models(folder: pathlib.Path) -> dict[str, Model]:
  """Returns the models of the evaluation, by name."""
  throughput, idle = _read_throughput(folder / _THROUGHPUT)
  return {
      row["model"]: Model(
          name=row["model"],
          samples_per_step=int(row["samples_per_step"]),
          throughput=throughput[row["model"]],
          idle_gpus=idle[row["model"]],
          reconfigure_ms=int(row["oobleck_reconfig_ms"]),
          # A remark may follow.
          restart_ms=int(row["varuna_restart_ms"].split()[0]),
          restart_ms_by_nodes=_RESTART_MS.get(row["model"]),
          checkpoint_ms=int(row["varuna_ckpt_ms_every_10_it"]),
          local_ms=int(row["bamboo_local_rendezvous_ms"]),
      )
      for row in _rows(folder / _CONSTANTS)
  }


def read_traces(folder: pathlib.Path) -> dict[str, Trace]:
  """Returns the traces of the evaluation, by name."""
  events: dict[str, list[Event]] = {}
  for row in _rows(folder / _TRACES):
    event = Event(int(row["time_ms"]), row["kind"], f"node{row['node']}")
    events.setdefault(row["trace"], []).append(event)
  return {
      name: Trace(name, tuple(found), duration_ms=found[-1].time_ms)
      for name, found in events.items()
  }


def read_published(folder: pathlib.Path) -> list[dict[str, str]]:
  """Returns the rows of the published table, unchanged."""
  return _rows(folder / _RESULTS)


def _read_throughput(
    path: pathlib.Path,
) -> tuple[dict[str, dict[str, dict[int, float]]], dict[str, dict[int, int]]]:
  """Returns throughput by model, system, nodes; idle GPUs by model, nodes."""
  throughput, idle = {}, {}
  for row in _rows(path):
    model, nodes = row["model"], int(row["nodes"])
    idle.setdefault(model, {})[nodes] = int(row["varuna_idle_gpus"])
    systems = throughput.setdefault(model, {})
    for system in SYSTEMS:
      if row[system] != _CANNOT_RUN:
        digits, value = _DIGITS.get((system, model), ()), float(row[system])
        exact = [d for d in digits if abs(d - value) < 0.006]
        systems.setdefault(system, {})[nodes] = exact[0] if exact else value
  return throughput, idle


def _rows(path: pathlib.Path) -> list[dict[str, str]]:
  with path.open(encoding="utf-8", newline="") as file:
    return list(csv.DictReader(file))

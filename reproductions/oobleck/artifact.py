"""Oobleck's evaluation against Varuna and Bamboo (SOSP'23), by its own rules.

The three are settings of one event simulator, described in our words in
`third_party/published/oobleck_simulator.md`. Step times come from a table of
throughput by the number of nodes. The rules have flaws that favour some
systems (`bamboo.loop`); `simulate` keeps them.
"""

from collections.abc import Mapping, Sequence
import dataclasses

from bamboo_jax import base
from bamboo_jax.reproductions.bamboo import loop as artifact_loop, rules as bamboo_rules
from bamboo_jax.reproductions.oobleck import inputs, rules as oobleck_rules
from bamboo_jax.traces import trace as trace_lib

# Models whose work was never lost on recorded traces, with Varuna.
NO_ROLLBACK = ("BERT-large", "GPT-2", "GPT-3-medium")

_USEFUL = 0.1971  # Share of Bamboo's computation that is not redundant.


@dataclasses.dataclass(frozen=True)
class Outcome:
  """The results of a run.

  Attributes:
    throughput: Samples per second from the first step's start to the end of the
      last step.
    average_nodes: Mean number of live nodes until the last step's end.
    shares: The artifact's account of time, by name. Each is accumulated by its
      own rule, so their sum is not the time.
  """

  throughput: float
  num_steps: int
  preemptions: int
  average_nodes: float
  shares: Mapping[str, float]


def simulate(
    model: inputs.Model,
    system: str,
    trace: trace_lib.Trace,
    *,
    has_rollback: bool = True,
    scans_heap: bool = True,
) -> Outcome | None:
  """Returns the outcome on a trace; None if the model cannot be run.

  The run ends with the last event of the trace, and notices are ignored. With
  `has_rollback`, Varuna loses the steps since its last checkpoint. Whether a loss precedes the end
  of a checkpoint is decided by the order of a heap's array, as in the artifact, or without
  `scans_heap` by the times of events. Raises `ValueError` if the trace is too short or too small
  for any training.
  """
  if system not in inputs.SYSTEMS:
    raise ValueError(base.suggest(system, inputs.SYSTEMS, what="system"))
  if system not in model.throughput:
    return None
  if trace.num_nodes < inputs.NUM_STAGES:
    raise ValueError(
        f"A pipeline takes {inputs.NUM_STAGES} nodes, but {trace.name} "
        f"has at most {trace.num_nodes} at once."
    )
  rows = [
      (event.time_ms, event.kind == "add", event.node)
      for event in trace.events
      if event.kind != "notice"
  ]
  if rows[-1][0] <= artifact_loop.CREATION_MS:
    raise ValueError(
        f"A node takes {artifact_loop.CREATION_MS} ms until it is ready, but "
        f"nothing happens from the last event of {trace.name} on, at "
        f"{rows[-1][0]} ms."
    )
  rules = _make_rules(model, system, rows, has_rollback)
  loop = artifact_loop.Loop(rules, queues_steps=scans_heap and system == "varuna")
  loop.run(rows, end_ms=rows[-1][0])
  samples = model.samples_per_step * loop.num_steps
  if isinstance(rules, oobleck_rules.VarunaRules):
    samples = rules.kept_samples()
  train_ms = loop.last_ms - (loop.first_ms or 0)
  return Outcome(
      throughput=1000 * samples / train_ms if loop.last_ms else 0.0,
      num_steps=loop.num_steps,
      preemptions=loop.num_removals,
      average_nodes=loop.average_nodes(),
      shares=_shares(rules, loop),
  )


def _make_rules(
    model: inputs.Model, system: str, rows: Sequence[artifact_loop.Row], has_rollback: bool
) -> artifact_loop.Rules:
  if system == "oobleck":
    return oobleck_rules.OobleckRules(model)
  if system == "varuna":
    removals_ms = [time_ms for time_ms, is_added, _ in rows if not is_added]
    return oobleck_rules.VarunaRules(model, removals_ms, has_rollback=has_rollback)
  return bamboo_rules.BambooRules(
      num_stages=inputs.NUM_STAGES,
      step_ms=lambda _, num_ready: model.step_ms("bamboo", num_ready),
      local_ms=model.local_ms,
  )


def _shares(rules: artifact_loop.Rules, loop: artifact_loop.Loop) -> Mapping[str, float]:
  sums = {"effective": loop.queued_ms, "fallback": rules.lost_ms}
  global_ms, local_ms = loop.timer_sum_ms[True], loop.timer_sum_ms[False]
  if isinstance(rules, oobleck_rules.OobleckRules):
    sums["rebalance"] = global_ms
  elif isinstance(rules, oobleck_rules.VarunaRules):
    sums["restart"] = global_ms
    sums["checkpoint"] = rules.checkpoint_sum_ms
    sums["idle_gpu"] = rules.idle_ms
  else:
    sums["effective"] = _USEFUL * loop.queued_ms
    sums["redundant"] = (1 - _USEFUL) * loop.queued_ms
    sums["restart"], sums["rebalance"] = global_ms, local_ms
  total = sum(sums.values())
  return {name: value / total for name, value in sums.items()}

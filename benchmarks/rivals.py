"""Case: a step, its prediction, and the same model under PyTorch."""

from collections.abc import Mapping, Sequence
import contextlib
import functools
import json
import sys

from bamboo_jax.base import ports as ports_lib
from bamboo_jax.benchmarks import table, turns
from bamboo_jax.plan import planner


def compare(
    ours: turns.Processes, subject: turns.Subject, *, rival: str | None, cores: Sequence[int]
) -> None:
  """Measures and prints; `rival` is None or "torch"."""
  ours.ask(f"build {subject.profile_path} rows/none")
  variants = {"ours": functools.partial(ours.run_step, "rows/none")}
  with contextlib.ExitStack() as stack:
    if rival is not None:
      commands = torch_commands(subject, cores)
      torch = stack.enter_context(turns.Processes(commands))
      variants["torch"] = lambda: turns.merge(torch.ask("step"))
    rows = turns.take_turns(variants, subject.num_rounds, begin=lambda k: ours.ask(f"feed {k}"))
  print(render(subject.plan, rows))


def render(plan: planner.Plan, rows: Mapping[str, Sequence[turns.Row]]) -> str:
  """Returns predictions and measurements as text; the ratio comes last."""
  predicted, own = plan.step_time, rows["ours"]
  found = table.medians(own)
  lines = [
      f"partition={plan.partition.bounds} steps={len(own)}",
      f"final_loss={own[-1]['loss']:.4f}",
      f"compute_ms={found['compute_ms']:.1f} " f"predicted={predicted.compute_ms:.1f}",
      f"update_ms={found['apply_ms']:.1f} predicted={predicted.update_ms:.1f}",
      f"step_ms={found['step_ms']:.1f} predicted={predicted.total_ms:.1f}",
      f"predicted_to_measured={predicted.total_ms / found['step_ms']:.3f}",
  ]
  if "torch" in rows:
    torch = rows["torch"]
    ratio = table.step_ratio(own, torch)
    lines += [
        f"torch_step_ms={table.medians(torch)['step_ms']:.1f}",
        f"ratio_interval_95=[{ratio.low:.3f}, {ratio.high:.3f}] " f"pairs={ratio.num_pairs}",
        f"ratio_to_torch={ratio.median:.3f}",
    ]
  return "\n".join(lines)


def torch_commands(subject: turns.Subject, cores: Sequence[int]) -> list[list[str]]:
  """Returns the command line of each stage under PyTorch."""
  config, pipeline = subject.config, subject.config.pipeline
  names = ("num_blocks", "width", "num_heads", "sequence_length", "vocab_size")
  sizes = {name: config.model.options[name] for name in names} | dict(
      port=ports_lib.free_port(),
      batch_size=pipeline.num_microbatches * pipeline.microbatch_size,
      num_microbatches=pipeline.num_microbatches,
      bounds=subject.plan.partition.bounds,
      learning_rate=config.optimizer.learning_rate,
  )
  worker = [sys.executable, "-m", "bamboo_jax.benchmarks.torch_rival"]
  return [
      [*worker, json.dumps(sizes | {"rank": rank, "core": cores[rank]})]
      for rank in range(pipeline.num_stages)
  ]

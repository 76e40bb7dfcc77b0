"""The benchmark of executors: what a step costs as rows and as one program.

Two processes, one per stage and each on a core of its own, run steps of both
executors in turns: without replicas ("none"), with replicas ("lazy"), and with
all redundant forward passes besides ("eager"). All have the same partition,
which keeps blocks whole.
"""

import json
import pathlib
from typing import Any

from bamboo_jax import base
from bamboo_jax.plan import planner
from bamboo_jax.train import build
from launch import processes
from launch.executors import measure
from launch.executors import predict
from launch.executors import report

_SIZES = (4, 6, 8, 12, 16)  # Stages of predicted pipelines.
# Above this, the two executors would not train the same.
_MAX_DIFFERENCE = 1e-3


def compare_executors(
    ours: processes.Processes,
    plan: planner.Plan,
    *,
    config: Any,
    task: build.Task,
    profile_path: pathlib.Path,
    num_rounds: int,
    out: pathlib.Path,
) -> None:
  """Measures, prints, and writes files.

  Args:
    ours: The processes; they have measured the profile.
    plan: Made from it.
    config: Of the comparison.
    task: Model and data.
    profile_path: The file that they should read the profile from.
    num_rounds: Steps of each variant.
    out: Folder of the files; it is made if need be.
  """
  out.mkdir(parents=True, exist_ok=True)
  bounds = ",".join(map(str, plan.partition.bounds))
  refresh_ms = max(
      json.loads(answer)["refresh_ms"]
      for answer in ours.ask(f"refresh_link {bounds}")
  )
  command = f"build_executors {profile_path} {' '.join(measure.MODES)}"
  built = measure.take_most(list(map(json.loads, ours.ask(command))))
  steps, difference = measure.run_rounds(ours, num_rounds=num_rounds)
  own = predict.plan_pair(config, task, plan, modes=(*measure.MODES, "bubble"))
  predicted_ms = {
      variant: predict.predict_step_ms(
          own, *variant.split("/"), refresh_ms=refresh_ms
      )
      for variant in measure.VARIANTS
  }
  pairs = [predict.plan_size(config, task, plan, size) for size in _SIZES]
  found = report.Report(
      partition=plan.partition.bounds,
      difference=difference,
      results=report.summarise(steps, built, predicted_ms),
      sizes=[predict.summarise(pair) for pair in (own, *pairs)],
  )
  print(report.render_report(found))
  for name, grid in report.render_grids(pairs[0]).items():
    print(f"\n{name}, {_SIZES[0]} stages, predicted:\n{grid}")
  report.write(found, steps, pairs[0], out)
  base.write_atomically(out / "profile.json", profile_path.read_bytes())
  print(f"\nfiles={out}")
  assert difference < _MAX_DIFFERENCE, "programs and rows differ"

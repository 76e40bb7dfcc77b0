"""The benchmark of redundancy: what each mode costs, and what a death costs.

Two processes, one per stage and each on a core of its own, run steps of all
modes in turns. Then each node dies at several times of a step, in all modes
that survive it: the process of the victim stops there, and the survivor plans
and runs the rest alone, on its own core. So the time is that of one node, as it
would not be if one process drove both. Detection takes no time here.
"""

import json
import pathlib
from typing import Any

from bamboo_jax import base
from bamboo_jax.plan import planner
from bamboo_jax.schedule import redundancy as redundancy_lib
from launch import processes
from launch.redundancy import measure
from launch.redundancy import predict
from launch.redundancy import report
from launch.redundancy import tables

_SIZES = (4, 6, 8, 12, 16)  # Stages of predicted pipelines.


def compare_modes(
    ours: processes.Processes,
    plan: planner.Plan,
    *,
    profile_path: pathlib.Path,
    redundancy: Any,
    num_rounds: int,
    num_deaths: int,
    num_repeats: int,
    out: pathlib.Path,
) -> None:
  """Measures, prints, and writes files.

  Args:
    ours: The processes; they have measured the profile.
    plan: Made from it.
    profile_path: The file that they should read it from.
    redundancy: Section of the config.
    num_rounds: Steps of each mode.
    num_deaths: Times of death of each node.
    num_repeats: How often each death is repeated.
    out: Folder of the files; it is made if need be.
  """
  modes = redundancy_lib.MODES
  options = dict(margin=redundancy.margin, budget=redundancy.budget)
  out.mkdir(parents=True, exist_ok=True)
  made = predict.plan_modes(plan, modes, **options)
  bounds = ",".join(map(str, plan.partition.bounds))
  refresh_ms = max(
      json.loads(answer)["refresh_ms"]
      for answer in ours.ask(f"refresh_link {bounds}")
  )
  answers = ours.ask(f"build_modes {profile_path} {' '.join(modes)}")
  replica_bytes = [json.loads(a)["replica_bytes"] for a in answers]
  steps = measure.run_rounds(ours, modes, num_rounds=num_rounds)
  same_state = is_one_state(list(map(json.loads, ours.ask("digests"))))
  deaths = measure.run_deaths(
      ours, made, num_deaths=num_deaths, num_repeats=num_repeats
  )
  found = report.Report(
      partition=plan.partition.bounds,
      options=options
      | {"refresh": redundancy.refresh, "slots": redundancy.slots},
      refresh_link_ms=refresh_ms,
      same_state=same_state,
      modes=[
          report.summarise_mode(
              mode,
              made[mode],
              steps,
              predicted_ms=predict.predict_step_ms(
                  plan, made[mode], refresh_ms=refresh_ms
              ),
              replica_bytes=max(held[mode] for held in replica_bytes),
          )
          for mode in modes
      ],
      deaths=report.summarise_deaths(deaths),
      pauses=report.compare_pauses(deaths, modes),
      sizes=predict.predict_sizes(plan, modes, sizes=_SIZES, **options),
  )
  print(tables.render_report(found))
  report.write(found, steps, deaths, out)
  base.write_atomically(out / "profile.json", profile_path.read_bytes())
  print(f"files={out}")
  assert same_state, "states of modes, or of replicas, differ"


def is_one_state(digests: list[dict[str, dict[str, str]]]) -> bool:
  """Whether all copies of each stage are the same, in all modes and processes.

  Args:
    digests: For each process, hashes by mode and stage.
  """
  found = {}
  for by_mode in digests:
    for by_stage in by_mode.values():
      for stage, value in by_stage.items():
        found.setdefault(stage, set()).add(value)
  return all(len(values) == 1 for values in found.values())

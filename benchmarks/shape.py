"""Throughput with f of N nodes gone, against (N - f)/N of the original.

python -m bamboo_jax.benchmarks.shape [--config=bench_shape] [--out=runs/bench_shape]

For each number of nodes there is a run of `bamboo train` with paced nodes, so
few cores suffice. One node dies after the other, each at a random time in a
step, until the next death would leave a layer without a copy.

  step      1 2 3 4 5 6   7      8 9 10   11
  dies                    a               b
  pause                         r
  measured  undisturbed   before after    before ...

`before` are steps in which a node dies, and the others do its part; between
that step and the next one new pipelines are formed, which is the pause r. After
it programs for the next death are loaded during training, so medians are taken.

Runs with fewer nodes have faster nodes, so that steps of all runs take about as
long and one core can walk the rows of 16 nodes.
"""

import argparse
from collections.abc import Iterator, Mapping, Sequence
import dataclasses
import pathlib
import random
import statistics
import sys

import tqdm

from bamboo_jax import base, config as config_lib
from bamboo_jax.benchmarks import interleave
from bamboo_jax.cli import config_flag
from bamboo_jax.metrics import jsonl, table as table_lib
from bamboo_jax.recovery import assignment, decide, layout as layout_lib
from bamboo_jax.runtime import devices as devices_lib
from bamboo_jax.sim import speed as speed_lib, times as times_lib
from bamboo_jax.training.setup import accept, job as job_lib, sizes

_NUM_FIRST, _NUM_EACH = 6, 4  # Steps before the first death, and after each.
_COLUMNS = (
    "nodes={num_nodes} lost={num_lost} stages={stages} ideal_ms={ideal_ms:.0f} "
    "step_ms={step_ms:.0f} predicted_ms={predicted_ms:.0f} ratio={ratio:.3f} "
    "predicted={predicted_ratio:.3f} with_death_ms={death_ms:.0f} "
    "predicted_ms={predicted_death_ms:.0f} ratio={death_ratio:.3f} "
    "pause_ms={pause_ms:.0f}"
)


@dataclasses.dataclass(frozen=True)
class Loss:
  """A death, the layout after it, and predicted times of steps.

  Attributes:
    victim: Number of the node; None before the first death.
    death_ms: Time of the step in which it dies, mean over times of death.
  """

  victim: int | None
  layout: layout_lib.Layout
  step_ms: float
  death_ms: float = 0.0


def plan_losses(
    rules: assignment.RecoveryRules, first: layout_lib.Layout, speed: times_lib.Speed
) -> Iterator[Loss]:
  """Yields the start, and then deaths, until one would lose a layer."""
  layout, members = first, {*first.nodes}
  rng = random.Random(len(members))
  step_ms = lambda layout: 1e3 * speed.step(layout.pipelines, drops=False).secs
  yield Loss(None, layout, step_ms(layout))
  while True:
    for victim in rng.sample(sorted(layout.nodes), len(layout.nodes)):
      lost = rules.lose(layout, members - {victim}, zones={})
      if lost.rung in decide.IMMEDIATE:
        break
    else:
      return
    delay = speed.finish(lost.rung, layout.pipelines, lost.layout.pipelines)
    death_ms = step_ms(layout) + 1e3 * delay.secs
    members.remove(victim)
    layout = rules.improve(lost.layout, members, zones={}).layout
    yield Loss(victim, layout, step_ms(layout), death_ms)


def measure(losses: Sequence[Loss], lines: Sequence[jsonl.Line]) -> list[Mapping[str, object]]:
  """Returns a row for each death, from the log of a run."""
  steps = [line for line in lines if "event" not in line]
  owners = {l["step"]: l["owners"] for l in lines if l.get("event") == "layout"}
  ends_ms = [1e3 * line["account"]["secs"] for line in steps]
  times_ms = [line["step_ms"] for line in steps]
  first, num_nodes = losses[0], len(losses[0].layout.nodes)
  usual_ms = statistics.median(times_ms[_NUM_FIRST - 3 : _NUM_FIRST])
  rows = []
  for num_lost, loss in enumerate(losses[1:], 1):
    at = _NUM_FIRST + (num_lost - 1) * _NUM_EACH
    share = num_nodes / (num_nodes - num_lost)
    ideal_ms = share * usual_ms
    step_ms = statistics.median(times_ms[at + 1 : at + _NUM_EACH])
    depths = [len({*roles.owners}) for roles in loss.layout.roles]
    now = owners[max(step for step in owners if step <= at + 2)]
    assert sorted(depths) == sorted(len({*row}) for row in now), (loss, now)
    rows.append(
        dict(
            num_nodes=num_nodes,
            num_lost=num_lost,
            stages="+".join(map(str, depths)),
            ideal_ms=ideal_ms,
            step_ms=step_ms,
            predicted_ms=loss.step_ms,
            ratio=ideal_ms / step_ms,
            predicted_ratio=share * first.step_ms / loss.step_ms,
            # The plan lacks the host's time, taken from the first steps.
            from_first_ms=loss.step_ms + usual_ms - first.step_ms,
            death_ms=times_ms[at],
            predicted_death_ms=loss.death_ms,
            death_ratio=ideal_ms / times_ms[at],
            pause_ms=ends_ms[at + 1] - ends_ms[at] - times_ms[at + 1],
        )
    )
  return rows


def compare(config: config_lib.Config, *, train: Sequence[str], out: pathlib.Path) -> None:
  """Measures all numbers of nodes and deaths, prints and writes a table.

  `train` is the command line of training, without nodes, faults and workdir.
  Raises `ValueError` with the last output of a run that failed.
  """
  found, least = [], config.pipeline.num_pipelines * config.pipeline.num_stages
  numbers = range(least, sizes.num_nodes(config) + 1)
  devices_lib.use_virtual_devices(len(numbers))
  # A rehearsal compiles all programs first.
  for number in tqdm.tqdm([0, *numbers], desc="nodes", disable=not sys.stderr.isatty()):
    num_nodes = number or least
    own = {
        "redundancy.spares": num_nodes - least,
        "model.options.time_scale": numbers[-1] / num_nodes,
    }
    losses, folder = _plan(config, own), out / str(number)
    options = [f"--config.{key}={value}" for key, value in own.items()]
    _train([*train, *options], folder, losses)
    if number:
      found += measure(losses, jsonl.read_lines(folder / "metrics.jsonl"))
  pairs = [column.split("=") for column in _COLUMNS.split()]
  cells = [[text.format(**row) for _, text in pairs] for row in found]
  print(table_lib.align([[heading for heading, _ in pairs], *cells]))
  base.write_atomically(out / "shape.csv", table_lib.to_csv(table_lib.of(found)))
  off, from_first = (
      [abs(row[name] / row["step_ms"] - 1) for row in found]
      for name in ("predicted_ms", "from_first_ms")
  )
  to_ideal = statistics.median(r["step_ms"] / r["ideal_ms"] for r in found)
  print(
      f"deaths={len(found)} median_step_to_ideal={to_ideal:.3f} "
      f"worst_ratio_with_death={min(r['death_ratio'] for r in found):.3f} "
      f"predicted_off_pct={100 * statistics.median(off):.1f} "
      f"worst_predicted_off_pct={100 * max(off):.1f} "
      f"from_first_off_pct={100 * statistics.median(from_first):.1f} "
      f"worst_from_first_off_pct={100 * max(from_first):.1f}"
  )
  print(f"worst_ratio_to_ideal={min(row['ratio'] for row in found):.3f}")


def _plan(config: config_lib.Config, changes: Mapping[str, float]) -> list[Loss]:
  config = config.changed({"model.options.time_scale": 1.0, **changes})
  devices = devices_lib.place_nodes([*range(sizes.num_nodes(config))])
  job = job_lib.make_job(config, devices=devices)
  speed = speed_lib.ProfileSpeed(
      job.plan.profile,
      num_microbatches=job.plan.batch.total_microbatches,
      microbatch_size=job.plan.batch.microbatch_size,
      redundant=config.redundancy,
      reroute=job.rules.ladder.reroute,
  )
  return [*plan_losses(job.rules, job.first_layout, speed)]


def _train(command: Sequence[str], folder: pathlib.Path, losses: Sequence[Loss]) -> None:
  deaths = [
      f"{_NUM_FIRST + i * _NUM_EACH},n{loss.victim},,kill\n" for i, loss in enumerate(losses[1:])
  ]
  folder.mkdir(parents=True, exist_ok=True)
  faults = folder / "faults.csv"
  faults.write_text("".join(deaths))
  num_steps = _NUM_FIRST + len(deaths) * _NUM_EACH
  run = [f"--config.num_steps={num_steps}", f"--faults={faults}"]
  command = [*command, *run, f"--workdir={folder}"]
  interleave.call(command, folder, name=str(folder), prepare=None)  # JAX has started here.


def main() -> None:
  parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
  parser.add_argument("--config", default="bench_shape")
  parser.add_argument("--out", default="runs/bench_shape")
  given = parser.parse_args()
  config = accept.accept(config_flag.load(given.config))
  if config.model.name != "paced" or config.pipeline.num_pipelines == 1:
    raise SystemExit("error: --config needs model.name='paced' and 2 pipelines or more.")
  train = [sys.executable, "-m", "bamboo_jax.launch.train", f"--config={given.config}"]
  compare(config, train=train, out=pathlib.Path(given.out))


if __name__ == "__main__":
  main()

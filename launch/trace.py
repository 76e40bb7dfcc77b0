r"""Generates traces of preemptions, shows recorded ones, and draws more like them.

bamboo trace generate --out=trace.csv --config.study.trace.nodes_per_zone="(11,11,10)" \
  --config.study.trace.hazard_per_node_hour=0.6 \
  --config.study.trace.bulk_sizes="((1,5),(2,3),(6,2))"
bamboo trace show trace.csv --out=trace.png
bamboo trace show trace.csv --num_nodes=16 --time_scale=0.01 \
  --events=small.csv
bamboo trace resample trace.csv --out=new.csv --hours=48 --block_hours=2 --seed=1

`generate` writes a file of events, drawn as `config.study.trace` says. `show` prints
statistics of a trace. `resample` writes random blocks of a recorded trace, one after the
other, as another one.
Several files are zones of one cluster. Formats: `docs/research/traces.md`.
"""

from collections.abc import Sequence
import dataclasses
import pathlib
from typing import Any

from bamboo_jax import base
from bamboo_jax.cli import config_flag, flagset
from bamboo_jax.cli.flagset import flag
from bamboo_jax.config import Config
from bamboo_jax.launch import cli
from bamboo_jax.metrics import palette, plots
from bamboo_jax.traces import generator, readers, scale, trace as trace_lib


@dataclasses.dataclass(frozen=True)
class TraceFlags:
  """What to do with which files."""

  arguments: tuple[str, ...] = flag(
      (), "generate, show or resample, then files to read.", takes_rest=True
  )
  out: str | None = flag(None, "Events to write, or the figure to draw (show).")
  figure_format: tuple[str, ...] = cli.figure_format(needs="out")
  seed: int = flag(0, "Of all that is random.")
  num_nodes: int | None = flag(None, "Scale to a cluster of this size.", least=1)
  time_scale: float = flag(1.0, "Multiply all times.", above=0)
  events: str | None = flag(None, "Write the trace as events.")
  hours: float = flag(24.0, "Length of what is resampled.", above=0)
  block_hours: float = flag(1.0, "Length of a block.", above=0)
  config: Config = cli.config("default", "What to generate.")


_READ = ("num_nodes", "time_scale")
# The flags of each command, beside --out and --seed.
_COMMANDS = {
    "generate": ("config",),
    "show": (*_READ, "figure_format", "events"),
    "resample": (*_READ, "hours", "block_hours"),
}


def main(flags: TraceFlags) -> None:
  """Runs the command that the first of the arguments names."""
  name, *files = flags.arguments or [""]
  if name == "fit":
    raise ValueError("fit is gone: `bamboo trace resample FILE` draws traces like a recorded one.")
  if name not in _COMMANDS:
    raise ValueError(base.suggest(name, _COMMANDS, what="command"))
  for other in {name for own in _COMMANDS.values() for name in own}.difference(_COMMANDS[name]):
    flagset.refuse([other], f"on {name}")
  used = "study.trace." if name == "generate" else "-"
  given = config_flag.given().values
  flagset.refuse_keys([key for key in given if not key.startswith(used)], f"on {name}")
  formats = flags.figure_format
  if not flags.out:
    if name != "show":
      raise ValueError("The flag --out is needed: where to write the trace.")
  elif name == "show":
    if (suffix := pathlib.Path(flags.out).suffix[1:]) not in plots.FORMATS:
      endings = " or ".join(f".{name}" for name in plots.FORMATS)
      raise ValueError(f"--out must end in {endings}, got {flags.out!r}.")
    formats = formats if flagset.is_given("figure_format") else (suffix,)
  for path in filter(None, (flags.out, flags.events)):
    cli.check_folder(path)
  if name == "generate":
    if files:
      raise ValueError(f"Unexpected arguments: {' '.join(files)}")
    section = flags.config.study.trace
    trace = generator.generate_trace(section, seed=flags.seed, name=str(flags.out))
  else:
    trace = readers.read_traces(files, seed=flags.seed)
    trace = scale.scale(trace, num_nodes=flags.num_nodes, time_scale=flags.time_scale)
  if name == "show":
    show(trace, path=flags.events, figure=flags.out, formats=formats)
    return
  if name == "resample":
    lengths = dict(hours=flags.hours, block_hours=flags.block_hours)
    trace = generator.resample(trace, seed=flags.seed, name=str(flags.out), **lengths)
  show(trace, path=flags.out)


def show(
    trace: trace_lib.Trace,
    *,
    path: str | None,
    figure: str | None = None,
    formats: Sequence[str] = ("png",),
) -> None:
  """Prints a summary of a trace; writes events to `path`, draws `figure`."""
  for name, value in trace_lib.summarize(trace).items():
    print(f"{name:28} {value:9.4g}")
  bulks = " ".join(f"{n}:{times}" for n, times in sorted(trace_lib.count_bulks(trace).items()))
  print(f"{'instants by nodes':28} {bulks or '-'}")
  print(f"{'zones':28} {' '.join(trace.zones).strip() or '-'}")
  if (usd_per_hour := trace_lib.mean_usd_per_hour(trace)) is not None:
    print(f"{'mean $ per node-hour':28} {usd_per_hour:9.4g}")
  for note in trace.notes:
    print(f"note: {note}")
  if path:
    base.write_atomically(path, readers.render_events(trace))
    print(f"events: {path}")
  if figure:
    for file in plots.save_figure(draw(trace), figure, formats):
      print(f"figure: {file}")


def draw(trace: trace_lib.Trace) -> Any:
  """Returns a figure of live and preempted nodes over time, and of instants by size."""
  fig, [[over_time, by_size]] = plots.new_figure((12, 3.4), 1, 2, width_ratios=(3, 1))
  lost = [sum(e.kind == "remove" for e in events) for _, events in trace.instants()]
  times_ms, live = zip(*trace.live_steps(), strict=True)
  ends_ms = (*times_ms, trace.duration_ms)
  *hours, end = [time_ms / trace_lib.MS_PER_HOUR for time_ms in ends_ms]
  name = plots.plain(pathlib.PurePath(trace.name).name)
  over_time.set_title(name, loc="left", fontsize=10)
  style = dict(color=palette.BLUE, linewidth=1.2, label="live nodes")
  over_time.step([*hours, end], [*live, live[-1]], where="post", **style)
  over_time.vlines(hours, 0, lost, color=palette.RED, label="preempted nodes")
  over_time.set_xlabel("time (h)")
  over_time.set_ylabel("nodes")
  over_time.set_ylim(bottom=0)
  bulks = trace_lib.count_bulks(trace)
  by_size.bar(list(bulks), list(bulks.values()), color=palette.RED)
  by_size.set_xlabel("nodes preempted at an instant")
  by_size.set_ylabel("instants")
  by_size.xaxis.set_major_locator(plots.count_locator())
  plots.add_legend(fig, over_time.get_legend_handles_labels()[0], side="upper")
  return fig


if __name__ == "__main__":
  cli.run(main, is_study=True)

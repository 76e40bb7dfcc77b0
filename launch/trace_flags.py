"""Flags of the commands of `bamboo trace`."""

from absl import flags

from bamboo_jax import base
from bamboo_jax.launch import cli, figure_flags, flag_checks
from bamboo_jax.traces import counts, parameters

OUT = flags.DEFINE_string("out", None, "Events to write (generate), or figure to draw (show, fit).")
FORMAT = figure_flags.define()
SEED = flags.DEFINE_integer("seed", 0, "Of all that is random.")
_DEFAULTS = parameters.Parameters()

# How a trace is generated: `parameters.Parameters`, by the same names.
GENERATED = (
    flags.DEFINE_list("nodes_per_zone", ["32"], "Nodes of each zone, such as 11,11,10."),
    flags.DEFINE_list("bulk_sizes", ["1:1"], "Nodes lost at once and weights: 1:5,2:3,6:2."),
    flags.DEFINE_list("hour_profile", ["1"] * 24, "24 weights of the hazard, from midnight."),
    *(
        flags.DEFINE_float(name, getattr(_DEFAULTS, name), help_text)
        for name, help_text in (
            ("hours", "Length of the trace."),
            ("hazard_per_node_hour", "Preemptions per node and hour."),
            ("zone_correlation", "Probability that a second zone is hit too."),
            ("start_hour", "Hour of the day at which the trace starts."),
            ("reacquire_secs", "Mean time until a node is replaced, or inf."),
            ("notice_secs", "From the notice that a node gets to its end."),
        )
    ),
)

# How a trace is read.
JSON_DATA = flags.DEFINE_enum(
    "json_data",
    "counts",
    counts.MEANINGS,
    "What numbers in JSON are: live nodes, or preempted ones.",
)
NUM_NODES = flags.DEFINE_integer("num_nodes", None, "Scale to a cluster of this size.")
TIME_SCALE = flags.DEFINE_float("time_scale", 1.0, "Multiply all times.")
READ = (JSON_DATA, NUM_NODES, TIME_SCALE, FORMAT)

EVENTS = flags.DEFINE_string("events", None, "Write the trace as events.")
NUM_SEEDS = flags.DEFINE_integer("num_seeds", 20, "Generated traces to compare with.", 1)

_COMMANDS = {"generate": GENERATED, "show": (*READ, EVENTS), "fit": (*READ, NUM_SEEDS)}


def check(command: str) -> None:
  """Raises `ValueError` for an unknown command, or a flag of another one."""
  if command not in _COMMANDS:
    raise ValueError(base.suggest(command, _COMMANDS, what="command"))
  allowed = (OUT.name, SEED.name, *(h.name for h in _COMMANDS[command]))
  flag_checks.check_needs([FORMAT], OUT)
  if command != "generate":
    figure_flags.of_file(FORMAT, OUT.value)
  for holder in (*GENERATED, *READ, EVENTS, NUM_SEEDS):
    if holder.present and holder.name not in allowed:
      raise ValueError(f"--{holder.name} is not an option of {command}.")
  for path in filter(None, (OUT.value, EVENTS.value)):
    cli.check_folder(path)

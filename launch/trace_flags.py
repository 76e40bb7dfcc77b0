"""The flags of `launch.trace`."""

from collections.abc import Sequence

from absl import flags

from bamboo_jax.traces import counts as trace_counts
from bamboo_jax.traces import parameters as trace_parameters
from bamboo_jax.traces import readers
from bamboo_jax.traces import scale
from bamboo_jax.traces import trace as trace_lib

DEFAULT = trace_parameters.Parameters()

OUT = flags.DEFINE_string(
    "out", None, "Events to write (generate), or a PNG to draw (show, fit)."
)
SEED = flags.DEFINE_integer(
    "seed", 0, "Of all that is random; which nodes go when a count drops."
)

# How a trace is generated: `trace_parameters.Parameters`, by the same names.
NODES_PER_ZONE = flags.DEFINE_list(
    "nodes_per_zone", ["32"], "Nodes of each zone, such as 11,11,10."
)
BULK_SIZES = flags.DEFINE_list(
    "bulk_sizes", ["1:1"], "Nodes lost at once and weights: 1:5,2:3,6:2."
)
HOUR_PROFILE = flags.DEFINE_list(
    "hour_profile", ["1"] * 24, "24 weights of the hazard, from midnight on."
)
NUMBERS = tuple(
    flags.DEFINE_float(name, getattr(DEFAULT, name), help_text)
    for name, help_text in (
        ("hours", "Length of the trace."),
        ("hazard_per_node_hour", "Preemptions per node and hour."),
        ("zone_correlation", "Probability that a second zone is hit too."),
        ("start_hour", "Hour of the day at which the trace starts."),
        ("reacquire_secs", "Mean time until a node is replaced, or inf."),
        ("notice_secs", "How long before its preemption a node gets notice."),
    )
)
GENERATED = (NODES_PER_ZONE, BULK_SIZES, HOUR_PROFILE, *NUMBERS)

# How a trace is read.
JSON_DATA = flags.DEFINE_enum(
    "json_data",
    "counts",
    trace_counts.MEANINGS,
    "What numbers in JSON are: live nodes, or preempted ones.",
)
NUM_NODES = flags.DEFINE_integer(
    "num_nodes", None, "Scale to a cluster of so many nodes."
)
TIME_SCALE = flags.DEFINE_float("time_scale", 1.0, "Multiply all times.")
READ = (JSON_DATA, NUM_NODES, TIME_SCALE)

EVENTS = flags.DEFINE_string("events", None, "Write the trace as events.")
NUM_SEEDS = flags.DEFINE_integer(
    "num_seeds", 20, "Generated traces to compare with.", 1
)


def check(command: str, holders: Sequence[flags.FlagHolder]) -> None:
  """Raises `ValueError` if a flag is set that is not one of a command."""
  allowed = (OUT.name, SEED.name, *(holder.name for holder in holders))
  if command != "generate" and not (OUT.value or ".png").endswith(".png"):
    raise ValueError(f"--out must be a PNG, such as a.png, got {OUT.value!r}.")
  for holder in (*GENERATED, *READ, EVENTS, NUM_SEEDS):
    if holder.present and holder.name not in allowed:
      raise ValueError(f"--{holder.name} is not an option of {command}.")


def read(files: Sequence[str]) -> trace_lib.Trace:
  """Returns the trace in some files, scaled as the flags say."""
  seed, meaning = SEED.value, JSON_DATA.value
  trace = readers.read_traces(files, seed=seed, json_data=meaning)
  if JSON_DATA.present and not any("(json_data)" in n for n in trace.notes):
    raise ValueError("--json_data is for JSON, which none of the files is.")
  return scale.scale(
      trace, num_nodes=NUM_NODES.value, time_scale=TIME_SCALE.value
  )

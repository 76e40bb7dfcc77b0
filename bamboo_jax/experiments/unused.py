"""Finds keys of a comparison's config that have no effect."""

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

from bamboo_jax.sim import build

_KINDS = ("transformer", "profile", "table")


class Unused(NamedTuple):
  """Flags without an effect, and why."""

  flags: list[str]
  reason: str


def find_unused(config: build.Config, *, trace: str | None, given: Collection[str]) -> Unused:
  """Returns keys among `given` without an effect that share a reason.

  If there are several reasons, only the first counts; empty without any.
  """
  for keys, when in _rules(config, trace):
    found = [key for key in given if any(key == k or key.startswith(f"{k}.") for k in keys)]
    if found:
      return Unused([f"--config.{key}" for key in found], when)
  return Unused([], "")


def is_swept(config: build.Config, trace: str | None) -> bool:
  """Returns whether the sweep can be played.

  It cannot if it is over the generation of traces and the trace is from a file.
  """
  sweep = config["sweep"]
  is_generated = sweep["field"].startswith("trace.")
  return bool(sweep["values"]) and not (trace and is_generated)


def _rules(config: build.Config, trace: str | None) -> Iterator[tuple[Sequence[str], str]]:
  """Yields keys without an effect, and the reason."""
  sweep, workload = config["sweep"], config["workload"]
  field, costs = sweep["field"], workload["costs"]
  if trace is None:
    yield ["trace_file"], "without --trace"
  else:
    yield ["trace"], "with --trace, which has the preemptions"
  if not sweep["values"]:
    yield ["sweep.field", "sweep.num_seeds"], "without config.sweep.values"
  elif not is_swept(config, trace):
    yield ["sweep"], (
        f"with --trace, as config.sweep.field={field} changes how traces are "
        "generated: sweep another field, or leave out --trace"
    )
  elif trace is not None:
    yield ["sweep.num_seeds"], "with --trace, which is one trace"
  if field != "workload.costs":
    for kind in _KINDS:
      keys = [f"workload.{kind}"]
      keys += ["workload.link_bytes_per_sec"] * (kind == "profile")
      if kind != costs:
        yield keys, f"with config.workload.costs={costs}"
  if build.is_of_instance(config):
    yield build.OF_INSTANCE, (
        f"with config.instance={config['instance']}, whose data sheet has it; "
        "config.workload.of_instance=False takes what the config has"
    )

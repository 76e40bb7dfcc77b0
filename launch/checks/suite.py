"""Runs checks one after the other, whatever becomes of each."""

from collections.abc import Callable, Mapping, Sequence
import json
import time

from launch.checks import child
from launch.checks import determinism
from launch.checks import finding as finding_lib
from launch.checks import settings as settings_lib

Finding = finding_lib.Finding

CHECKS = (
    "device",
    "memory",
    "programs",
    "offload",
    "determinism",
    "pipeline",
)


def run_one(
    name: str, settings: settings_lib.Settings, *, timeout_secs: float
) -> Finding:
  """Returns what the check `name` found; blocks.

  Args:
    name: One of `CHECKS`.
    settings: What to check.
    timeout_secs: How long each of its processes may take.
  """
  if name == "determinism":  # Starts no JAX, but processes that do.
    return determinism.run(settings, timeout_secs=timeout_secs)
  return child.run_check(name, settings, timeout_secs=timeout_secs)


def run_checks(
    names: Sequence[str],
    run: Callable[[str], Finding],
    *,
    show: Callable[[str], None],
    save: Callable[[Mapping[str, Finding]], None] = lambda found: None,
    clock: Callable[[], float] = time.monotonic,
) -> dict[str, Finding]:
  """Runs checks in order and shows each result at once.

  Without the device that is wanted nothing else makes sense, so a failure of
  the check "device" is the only one that ends the others.

  Args:
    names: What to run.
    run: Returns what a check found.
    show: Takes lines for people.
    save: Takes all that is known so far, after each check.
    clock: Returns the time in seconds.
  """
  found = {}
  for name in names:
    show(f"== {name}")
    start = clock()
    found[name] = run(name)
    save(found)
    for line in found[name].lines:
      show(f"  {line}")
    for problem in found[name].problems:
      show(f"FAILED {name}: {problem}")
    if not found[name].problems:
      show(f"ok {name} ({clock() - start:.0f} s)")
    elif name == "device":
      break
  return found


def to_json(
    settings: settings_lib.Settings, found: Mapping[str, Finding]
) -> str:
  """Returns all that was found, as JSON for programs to read."""
  return json.dumps(
      {
          "settings": json.loads(settings.to_json()),
          "checks": {
              name: {
                  "ok": not finding.problems,
                  "problems": list(finding.problems),
                  "values": finding.values,
              }
              for name, finding in found.items()
          },
      },
      indent=2,
  )

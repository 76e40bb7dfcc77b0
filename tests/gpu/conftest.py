"""Options and the report of the checks of a GPU.

Figures are written as they come, one JSON object a line: `part`, `figure`,
`value`. The last line of a part has the figure "ok".
"""

import dataclasses
import json
import os
import pathlib
import time

import pytest

from bamboo_jax.base import json as json_lib
from tests.gpu import child, fill_table, settings as settings_lib


def pytest_addoption(parser):
  group = parser.getgroup("checks of a GPU")
  group.addoption("--gpu", action="store_true", help="there must be a GPU")
  group.addoption("--smoke", action="store_true", help="small, on any device")
  group.addoption("--out", help="file of JSON lines to write")
  group.addoption("--timeout_secs", type=float, help="limit of each part")
  for field in dataclasses.fields(settings_lib.Settings):
    kind = float if field.name == "peak_tflops" else type(field.default)
    if kind is not bool:
      group.addoption(f"--{field.name}", type=kind)


def pytest_configure(config):
  config.stash[_REPORT] = {}
  if _is_wanted(config):
    _start_report(config)  # Fails at once if it cannot be written.


def pytest_collection_modifyitems(config, items):
  if not _is_wanted(config):
    skip = pytest.mark.skip(reason="launch/gpu_check runs it")
    for item in items:
      if item.get_closest_marker("gpu"):
        item.add_marker(skip)


def pytest_terminal_summary(terminalreporter, config):
  for part, figures in config.stash[_REPORT].items():
    terminalreporter.section(part)
    for figure, value in figures:
      if figure != "problems":
        terminalreporter.line(f"  {figure}: {fill_table.show(value)}")
        continue
      for problem in value:
        terminalreporter.line(f"FAILED {part}: {problem}")


@pytest.fixture
def settings(request):
  """What to check, as the options say."""
  return _settings(request.config)


@pytest.fixture
def part(request):
  """Name of the part that runs."""
  return request.node.name.removeprefix("test_")


@pytest.fixture
def secs_left(request, part):
  """Returns the seconds that the part may still take, at least one."""
  limit = request.config.getoption("--timeout_secs")
  factor = settings_lib.SMOKE_PATIENCE if _is_smoke(request.config) else 1.0
  limit = limit or factor * settings_lib.LIMITS_SECS.get(part, 300.0)
  end = time.monotonic() + limit
  return lambda: max(1.0, end - time.monotonic())


@pytest.fixture
def note(request, part):
  """Writes figures at once, and shows them at the end."""

  def add(**figures):
    request.config.stash[_REPORT].setdefault(part, []).extend(json_lib.flatten(figures).items())
    _write_lines(request.config, part, figures)

  return add


@pytest.fixture
def run_alone(settings, secs_left, note):
  """Runs a check in a process of its own, by default with training's flags.

  `changes` are of the settings.
  """

  def run(check, *, xla_flags=settings_lib.SAME_BITS, label=None, **changes):
    own = dataclasses.replace(settings, **changes)
    found = child.run(check, own, xla_flags=xla_flags, timeout_secs=secs_left())
    if label:
      note(**{label: found.values})
    return found

  return run


@pytest.fixture
def report(note):
  """Notes what was found; fails if there are problems."""

  def add(found):
    note(**found.values, problems=list(found.problems), ok=not found.problems)
    assert not found.problems

  return add


@pytest.fixture
def train(secs_left, report, tmp_path):
  """Trains in a process of its own; returns the summary of the run."""

  def run(name, *arguments, module="launch.train"):
    command = [
        "-m",
        module,
        "--config=configs/sweep_faults.py",
        "--config.metrics.plots=False",
        "--config.checkpoint.every_steps=0",
        *arguments,
        f"--workdir={tmp_path / name}",
    ]
    flags = os.environ.get("XLA_FLAGS", "")
    if problem := child.run_python(command, xla_flags=flags, timeout_secs=secs_left()):
      report(child.Found(problems=[f"{name}: {problem}"]))
    return json.loads((tmp_path / name / "summary.json").read_text())

  return run


_REPORT = pytest.StashKey()


def _is_wanted(config):
  # There are no options if all tests are run: this file is then read too late.
  return any(config.getoption(name, False) for name in ("--gpu", "--smoke"))


def _is_smoke(config):
  return config.getoption("--smoke") or not config.getoption("--gpu")


def _settings(config):
  given = {
      field.name: config.getoption(f"--{field.name}", None)
      for field in dataclasses.fields(settings_lib.Settings)
  }
  base = settings_lib.SMOKE if _is_smoke(config) else settings_lib.Settings()
  given = {name: value for name, value in given.items() if value is not None}
  return dataclasses.replace(base, **given)


def _start_report(config):
  try:
    settings = dataclasses.asdict(_settings(config))
    if path := config.getoption("--out"):
      pathlib.Path(path).write_text("")
      _write_lines(config, "settings", settings)
  except (ValueError, OSError) as error:
    raise pytest.UsageError(str(error)) from None


def _write_lines(config, part, figures):
  if not (path := config.getoption("--out", None)):
    return
  with open(path, "a", encoding="utf-8") as file:
    for figure, value in json_lib.flatten(figures).items():
      line = {"part": part, "figure": figure, "value": value}
      file.write(json.dumps(line) + "\n")

"""Options and the report of the checks of a GPU."""

import dataclasses
import json
import pathlib

import pytest

from tests.gpu import child
from tests.gpu import settings as settings_lib


def pytest_addoption(parser):
  group = parser.getgroup("checks of a GPU")
  group.addoption("--gpu", action="store_true", help="there must be a GPU")
  group.addoption("--smoke", action="store_true", help="small, on any device")
  group.addoption("--out", help="JSON file to write")
  group.addoption("--timeout_secs", type=float, default=1200.0)
  for field in dataclasses.fields(settings_lib.Settings):
    kind = float if field.name == "peak_tflops" else type(field.default)
    if kind is not bool:
      group.addoption(f"--{field.name}", type=kind)


def pytest_configure(config):
  config.stash[_REPORT] = {}
  if _is_wanted(config):
    _write_report(config)  # Fails at once if it cannot be written.


def pytest_collection_modifyitems(config, items):
  if not _is_wanted(config):
    skip = pytest.mark.skip(reason="launch/gpu_check runs it")
    for item in items:
      if item.get_closest_marker("gpu"):
        item.add_marker(skip)


def pytest_terminal_summary(terminalreporter, config):
  for name, found in config.stash[_REPORT].items():
    terminalreporter.section(name)
    for line in found.lines:
      terminalreporter.line(f"  {line}")
    for problem in found.problems:
      terminalreporter.line(f"FAILED {name}: {problem}")


@pytest.fixture
def settings(request):
  """What to check, as the options say."""
  return _settings(request.config)


@pytest.fixture
def run_alone(request, settings):
  """Runs a check in a process of its own with these XLA flags."""

  def run(check, *, xla_flags=""):
    secs = request.config.getoption("--timeout_secs")
    return child.run(check, settings, xla_flags=xla_flags, timeout_secs=secs)

  return run


@pytest.fixture
def report(request):
  """Puts what was found into the report; fails if there are problems."""

  def add(found):
    name = request.node.path.name.removesuffix("_test.py")
    request.config.stash[_REPORT][name] = found
    _write_report(request.config)
    assert not found.problems

  return add


_REPORT = pytest.StashKey()


def _is_wanted(config):
  # There are no options if all tests are run: this file is then read too late.
  return any(config.getoption(name, False) for name in ("--gpu", "--smoke"))


def _settings(config):
  given = {
      field.name: config.getoption(f"--{field.name}", None)
      for field in dataclasses.fields(settings_lib.Settings)
  }
  base = settings_lib.SMOKE
  if config.getoption("--gpu") and not config.getoption("--smoke"):
    base = settings_lib.Settings()
  given = {name: value for name, value in given.items() if value is not None}
  return dataclasses.replace(base, **given)


def _write_report(config):
  try:
    settings = _settings(config)
    if path := config.getoption("--out"):
      checks = {
          name: {
              "ok": not found.problems,
              "problems": list(found.problems),
              "values": found.values,
          }
          for name, found in config.stash[_REPORT].items()
      }
      text = {"settings": dataclasses.asdict(settings), "checks": checks}
      pathlib.Path(path).write_text(json.dumps(text, indent=2) + "\n")
  except (ValueError, OSError) as error:
    raise pytest.UsageError(str(error)) from None

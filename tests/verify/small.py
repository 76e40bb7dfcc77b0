"""Trials of a model that is small, which share their programs."""

import functools

from bamboo_jax.faults import faults as faults_lib
from bamboo_jax.training.setup import accept, build
from bamboo_jax.verify import cases, trials as trials_lib
from configs import sweep_faults
from tests import tables


def make_config(num_stages, num_microbatches, num_pipelines, *, num_shares=None, **changes):
  """Returns a config of a smaller model; `recovery__x` changes that, other
  changes are of its redundancy, but for `num_steps`.
  """
  config = sweep_faults.get_config()
  config.model.options.num_blocks = 2
  config.checkpoint.every_steps = 0
  config.pipeline.update(num_stages=num_stages, num_microbatches=num_microbatches)
  config.pipeline.update(num_pipelines=num_pipelines, num_shares=num_shares)
  config.num_steps = changes.pop("num_steps", config.num_steps)
  for name, value in changes.items():
    section, _, key = name.rpartition("__")
    config[section or "redundancy"][key] = value
  return config


@functools.cache
def make_trials(*size, **changes):
  config = make_config(*size, **changes)
  return trials_lib.Trials(config, like=make_task())


@functools.cache
def make_task():
  return build.make_task(accept.accept(make_config(2, 1, 1)))


def make_case(text):
  """Returns faults written as "1,0/2,5 2,,,join": step, place, point, kind."""
  lines = [f if f.count(",") == 3 else f"{f},kill" for f in text.split()]
  return cases.Case(faults_lib.parse_faults("\n".join(lines), source="test"))


def read(line):
  """Returns trials and a case, written as "4x2x1 1,0/2,5 2,,,join mode=none".

  The sizes are those of `make_config`, in order; what follows are faults, and changes.
  """
  size, *words = line.split()
  faults = [word for word in words if "=" not in word]
  changes = tables.parse_changes(" ".join(word for word in words if "=" in word))
  return make_trials(*map(int, size.split("x")), **changes), make_case(" ".join(faults))


def run(line):
  """Returns the outcome of a line, see `read`."""
  trials, case = read(line)
  return trials.run(case)

"""What is compiled ahead serves any role of the nodes of a process."""

import collections
from unittest import mock

from absl.testing import absltest
import jax
import numpy as np

from bamboo_jax import config as config_lib
from bamboo_jax.runtime.phases import compile_ahead, replicas
from bamboo_jax.runtime.stage import programs as programs_lib
from bamboo_jax.runtime.wire import ordered_sum
from bamboo_jax.schedule import failover
from tests.runtime import engine_test as engines
from tests.runtime.spmd import pipelines

OWNERS = [(0, 1), (2, 3)]
SHADOWS = [{0: 1, 1: 0}, {0: 3, 1: 2}]
_STEP = {"cast", "forward", "backward", "norms", "zeros", "update"}


def make_engine(num_devices=4, **options):
  """Returns two pipelines of two stages; nothing is compiled."""
  devices = {node: jax.devices()[node % num_devices] for node in range(5)}  # One is a spare.
  engine = engines.build(engines.cut(2), OWNERS, devices=devices, **options)
  engine.set_pipelines([*map(failover.Roles, OWNERS, SHADOWS)], engine.lines)
  return engine


def find_programs(jobs):
  """Returns the names of the programs to compile, by first layer of a unit and device."""
  asked = collections.defaultdict(list)
  for job in jobs:
    if isinstance(programs := getattr(job.func, "__self__", None), programs_lib.UnitPrograms):
      name, place = job.args
      asked[programs.unit.first, place].append(name)
  return asked


class CompileAheadTest(absltest.TestCase):

  def test_programs_of_all_kinds_on_all_devices(self):
    engine = make_engine(2)
    asked = find_programs(compile_ahead.find_jobs(engine, evaluate=True))
    kinds = {0, 1, 5}  # Embedding, blocks, loss.
    self.assertEqual(asked.keys(), {(i, d) for i in kinds for d in jax.devices()[:2]})
    for names in asked.values():
      self.assertCountEqual(names, _STEP | {"evaluate", "redundant"})
    engine = make_engine(replicas=config_lib.RedundancySection(mode="bubble", refresh="state"))
    jobs = compile_ahead.find_jobs(engine, evaluate=False)
    for names in find_programs(jobs).values():
      self.assertCountEqual(names, _STEP | {"propose", "redundant"})

  def test_what_a_unit_does_not_have(self):
    *_, last = engines.make_whole().units
    programs, device = programs_lib.UnitPrograms(last), jax.devices()[0]
    self.assertIsNone(programs.compile("redundant", device))
    self.assertIsNone(programs.compile("cast", device))

  def test_what_is_compiled_already_costs_nothing(self):
    engine = make_engine()
    others = [
        job
        for job in compile_ahead.find_jobs(engine, evaluate=True)
        if not find_programs([job])  # Those take seconds; see `programs_test`.
    ]
    for job in others:
      job()
    engine.set_state(engines.initial_layers())
    events = pipelines.count_compilations()
    for job in others:
      job()
    replicas.take_prints(engine, 0)  # Finds them.
    self.assertEmpty(events)

  def test_sums_between_processes(self):
    engine = make_engine(exchange=mock.Mock())
    largest = max(a.size for u in engine.specs[0].units for a in jax.tree.leaves(u.accumulator))
    terms = [
        job.args[1]
        for job in compile_ahead.find_jobs(engine, evaluate=False)
        if job.args[0] is ordered_sum.add
    ]
    sizes = {term[0].size for term in terms if isinstance(term[0], jax.ShapeDtypeStruct)}
    self.assertEqual({*map(len, terms)}, {2})
    for num_nodes in (1, 2, 3):
      own = ordered_sum.cut(np.zeros(largest), range(num_nodes))
      found = {ordered_sum._padded(len(piece)) for pieces in own.values() for piece in pieces}
      self.assertContainsSubset(found, sizes)

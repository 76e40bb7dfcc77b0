"""What is compiled ahead covers every death that can be survived."""

import collections

from absl.testing import absltest
import jax

from bamboo_jax.plan import memory as memory_lib
from bamboo_jax.runtime import engine as engine_lib
from bamboo_jax.runtime.phases import compile_ahead
from bamboo_jax.runtime.stage import programs as programs_lib
from tests.runtime import engine_test as engines

OWNERS = [(0, 1), (2, 3)]
SHADOWS = [{0: 1, 1: 0}, {0: 3, 1: 2}]


def make_engine(devices=None, **options):
  """Returns two pipelines of two stages; nothing is compiled."""
  engine = engine_lib.Engine(
      engines.cut(2),
      owners=OWNERS,
      devices=dict(enumerate(devices or jax.devices()[:4])),
      num_shares=2,
      **options,
  )
  engine.set_pipelines(OWNERS, SHADOWS, engine.shares)
  return engine


class CompileAheadTest(absltest.TestCase):

  def test_deaths_in_every_pipeline(self):
    self.assertEqual(
        list(compile_ahead.survivable_deaths(OWNERS, SHADOWS)),
        [[(1, 1), (2, 3)], [(0, 0), (2, 3)], [(0, 1), (3, 3)], [(0, 1), (2, 2)]],
    )
    self.assertEmpty([*compile_ahead.survivable_deaths(OWNERS, [{} for _ in OWNERS])])

  def test_groups_of_a_step(self):
    want = {frozenset(g) for g in ((0, 1), (2, 3), (0, 2), (1, 3))}
    self.assertEqual(now_groups(make_engine()), want)

  def test_nothing_is_left_to_compile_whoever_dies(self):
    engine = make_engine()
    for job in compile_ahead.compile_jobs(engine, evaluate=True):
      if not is_of_programs(job):  # Those take seconds; see `test_programs`.
        job()
    events = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, secs, **_: events.append(name) if "backend_compile" in name else None
    )
    self.addCleanup(jax.monitoring.clear_event_listeners)
    for owners in compile_ahead.survivable_deaths(OWNERS, SHADOWS):
      none = [{} for _ in owners]
      lines = [*zip(owners, engine.shares, strict=True)]
      for job in compile_ahead.compile_jobs_of(engine, owners, none, lines):
        if not is_of_programs(job):
          job()
      self.assertEmpty(events, msg=str(owners))

  def test_programs(self):
    engine = make_engine()
    asked = collections.defaultdict(set)
    for job in compile_ahead.compile_jobs(engine, evaluate=True):
      if is_of_programs(job):
        programs = job.func.__self__
        asked[programs.device, programs.spec.first] |= {*job.args[0]}
    step = {"cast", "forward", "backward", "norms", "zeros", "update"}
    device, (first, last) = engine.devices[0], [s.first for s in engine.specs]
    self.assertEqual(asked[device, first], step | {"evaluate"})
    self.assertEqual(asked[device, last], step | {"redundant"})  # A replica.
    self.assertLen(asked, 8)

  def test_programs_of_a_step_with_replicas_of_the_state_and_without(self):
    engine = make_engine(replicas=memory_lib.Protection(refresh="state"))
    asked = collections.defaultdict(set)
    for job in compile_ahead.compile_jobs(engine, evaluate=False):
      if is_of_programs(job):
        asked[job.func.__self__] |= {*job.args[0]}
    self.assertNotEmpty(asked)
    for names in asked.values():
      self.assertContainsSubset({"propose", "update"}, names)

  def test_an_executor_is_asked_for_the_roles_now_and_after_a_death(self):
    engine, asked = make_engine(), []
    job = lambda: None

    def more(lines):
      asked.append([*lines])
      return [job]

    jobs = compile_ahead.compile_jobs(engine, evaluate=False, more=more)
    deaths = [*compile_ahead.survivable_deaths(OWNERS, SHADOWS)]
    found = [[row for row, _ in lines] for lines in asked[1:]]
    self.assertEqual(found, [[*owners] for owners in deaths])
    self.assertEqual(asked[0], [*engine.lines])
    self.assertEqual(jobs.count(job), len(asked))
    jobs = compile_ahead.compile_jobs_of(
        engine, deaths[0], [{} for _ in OWNERS], asked[1], more=more
    )
    self.assertEqual(asked[-1], asked[1])
    self.assertIn(job, jobs)

  def test_a_spare_has_the_programs_of_any_role(self):
    engine, asked = make_engine(), {}
    for job in compile_ahead.compile_jobs_of_spare(engine, 1):
      if is_of_programs(job):
        programs = job.func.__self__
        self.assertEqual(programs.device, engine.devices[1])
        names = asked.setdefault(programs.spec.first, set())
        names.update(job.args[0])
    self.assertLen(asked, len(engine.specs))
    for names in asked.values():
      self.assertContainsSubset({"backward", "redundant", "update"}, names)


def is_of_programs(job):
  return isinstance(getattr(job.func, "__self__", None), programs_lib.StagePrograms)


def now_groups(engine):
  return compile_ahead.find_groups(engine, engine.owners, engine.shadows, engine.lines)


class PartnersTest(absltest.TestCase):

  def test_nodes_needed_now_come_first(self):
    engine = make_engine()
    kept = {0: engine.nodes[0]}
    engine.nodes.clear()
    engine.nodes.update(kept)
    now = {n for group in now_groups(engine) if 0 in group for n in group}
    found = compile_ahead.find_partners(engine)
    self.assertEqual({*found[: len(now) - 1]}, now - {0})
    self.assertLen({*found}, len(found))
    self.assertGreater(len(found), len(now) - 1)

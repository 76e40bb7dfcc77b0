"""Nothing is compiled while others wait: each test shares no programs."""

import threading
from unittest import mock

import jax
import numpy as np

from bamboo_jax.runtime import compat, program_store as store_lib
from bamboo_jax.training import background_compiler, cohort as cohort_lib, evaluation
from bamboo_jax.training.record import deaths
from bamboo_jax.verify import trials as trials_lib
from tests import folders
from tests.verify import small


class CompilationTest(folders.FolderCase):

  def listen(self, part, threads=None):
    """Returns the events of such a name to come, of all threads or of some."""
    heard = []

    def hear(name, secs, **_):
      if part in name and (threads is None or threading.current_thread() in threads):
        heard.append(name)

    jax.monitoring.register_event_duration_secs_listener(hear)
    self.addCleanup(jax.monitoring.clear_event_listeners)
    return heard

  # Shares nothing, so that all programs are asked for again: 8 s.
  def test_a_join_asks_for_no_program_that_was_not_there(self):
    jax.clear_caches()
    asked, before = set(), set()
    others = {*threading.enumerate()} - {threading.main_thread()}
    programs = store_lib.use()
    self.addCleanup(store_lib.use)

    def note(key, deserialize):
      if threading.current_thread() not in others:  # Of earlier tests.
        asked.add(key)
      return programs.load(key, deserialize)

    config = small.make_config(2, 2, 1)
    trials = trials_lib.Trials(config)
    compat.use_cache(note, programs.save)
    worker = trials.begin(small.make_case("1,0/1,5 2,,,join").faults, workdir_path=self.folder)
    strike = cohort_lib.LocalCohort.strike

    def join(cohort, due):
      if due.fault.kind == "join":
        worker._compiler.wait()
        before.update(asked)
      return strike(cohort, due)

    with mock.patch.object(cohort_lib.LocalCohort, "strike", join):
      worker.run(stop_at=4)
    self.assertIn(2, worker.state.layout.nodes)
    self.assertNotEmpty(before)
    self.assertEqual(asked, before)

  # Shares nothing, or programs of other trials would be found: 10 s.
  def test_nothing_is_compiled_between_death_and_commit(self):
    jax.clear_caches()
    trials = trials_lib.Trials(small.make_config(3, 2, 1, num_shares=2))
    compiled, seen = self.listen("backend_compile"), []
    add, ready = deaths.Deaths.add, deaths.Deaths.end_step
    submit = background_compiler.BackgroundCompiler._submit

    def compile_at_once(compiler, *arguments, **options):  # A slow machine may be late.
      submit(compiler, *arguments, **options)
      compiler.wait()

    def lose(*args):
      compiled.clear()
      add(*args)

    def commit(known, *args):
      if known.recoveries:
        seen.append(len(compiled))
      return ready(known, *args)

    with (
        mock.patch.object(background_compiler.BackgroundCompiler, "_submit", compile_at_once),
        mock.patch.object(deaths.Deaths, "add", lose),
        mock.patch.object(deaths.Deaths, "end_step", commit),
    ):
      trials.run(small.make_case("1,0/1,3"))
      trials.run(small.make_case("1,0/2,3 2,0/0,reduce"))
    self.assertEqual(seen[0], 0)
    jax.jit(lambda a: a + 43)(np.ones(3))  # The listener does listen.
    self.assertNotEmpty(compiled)

  # As above: 10 s.
  def test_an_evaluation_after_a_death_finds_its_programs(self):
    config = small.make_config(3, 2, 1, evaluate__every_steps=2)
    trials = trials_lib.Trials(config)
    worker = trials.begin(small.make_case("2,0/1,3").faults, workdir_path=self.folder)
    compiled = self.listen("/compile/", threads=[threading.main_thread()])
    evaluate, seen = evaluation.run, []

    def wait_and_evaluate(*args, step):
      worker._compiler.wait()
      compiled.clear()
      loss = evaluate(*args, step=step)
      seen.append((step, len(compiled)))
      return loss

    with mock.patch.object(evaluation, "run", wait_and_evaluate):
      worker.run(stop_at=5)
    self.assertEqual(seen[-1], (4, 0))

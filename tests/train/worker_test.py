"""Steps in which nodes die, come or leave end as without, to the bit.

The worker is that of clusters, on a cohort of one member. `launch.sweep_faults`
runs all deaths; this is a sample of their kinds. Compiling is what takes time,
so all trials but one share their programs.
"""

import dataclasses
import functools
import json
import pathlib
import tempfile
import threading
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
import numpy as np

from bamboo_jax import base
from bamboo_jax.base import json as json_lib
from bamboo_jax.faults import faults as faults_lib
from bamboo_jax.metrics import jsonl
from bamboo_jax.runtime import compat
from bamboo_jax.runtime import engine as engine_lib
from bamboo_jax.runtime import node as node_lib
from bamboo_jax.runtime import program_cache
from bamboo_jax.runtime.executables import store as store_lib
from bamboo_jax.runtime.phases import compile_ahead
from bamboo_jax.runtime.wire import share_sum
from bamboo_jax.schedule import holdings
from bamboo_jax.schedule import instruction as instruction_lib
from bamboo_jax.train import evaluation
from bamboo_jax.train import run_state as run_state_lib
from bamboo_jax.train import step as step_lib
from bamboo_jax.train.members import local_cohort
from bamboo_jax.train.record import run_log
from bamboo_jax.train.setup import build
from configs import sweep_faults
from tests import fakes
from tests.fault_sweep import cases
from tests.fault_sweep import trials as trials_lib

_CACHE = program_cache.ProgramCache()


def setUpModule():
  jax.devices()  # Now there are 8, however few a run asks for.


def make_config(
    num_stages, num_microbatches, num_pipelines, *, num_shares=None, **changes
):
  """Returns a config of a smaller model; `recovery__x` changes that, other
  changes are of its redundancy, but for `num_steps`.
  """
  config = sweep_faults.get_config()
  config.model.options.num_blocks = 2
  config.checkpoint.every_steps = 0
  config.pipeline.num_stages = num_stages
  config.pipeline.num_microbatches = num_microbatches
  config.pipeline.num_pipelines = num_pipelines
  config.pipeline.num_shares = num_shares
  config.num_steps = changes.pop("num_steps", config.num_steps)
  for name, value in changes.items():
    section, _, key = name.rpartition("__")
    config[section or "redundancy"][key] = value
  return config


@functools.cache
def make_trials(*size, **changes):
  config = make_config(*size, **changes)
  return trials_lib.Trials(config, cache=_CACHE, whole=make_whole())


@functools.cache
def make_whole():
  return build.make_task(make_config(2, 1, 1)).whole


def make_case(text):
  """Returns faults written as "1,0/2,5 2,,,join": step, place, point, kind."""
  lines = [f if f.count(",") == 3 else f"{f},kill" for f in text.split()]
  return cases.Case(faults_lib.parse_faults("\n".join(lines), source="test"))


class DeathsTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ("two_stages", (2, 2, 1), 2, {}),
      ("two_pipelines", (2, 2, 2), 4, {}),
      ("four_stages", (4, 2, 1), 4, {}),
      ("lazy", (4, 2, 1), 9, {"mode": "lazy"}),
      ("state", (2, 2, 1), 9, {"refresh": "state"}),
      ("host", (2, 2, 1), 9, {"slots": "host"}),
  )
  def test_one(self, size, every, changes):
    trials = make_trials(*size, **changes)
    for case in cases.single_deaths(trials.steps, every=every):
      with self.subTest(str(case)):
        self.assertEqual(trials.run(case).rungs, ("shadow",))

  @parameterized.named_parameters(
      ("both_pipelines", (2, 2, 2), "1,0/0,3 1,1/1,5"),
      ("one_stage", (2, 2, 2), "1,0/1,reduce 1,1/1,reduce"),
      ("in_phases", (2, 2, 2), "1,0/0,norm 1,1/0,apply"),
      ("apart_at_once", (4, 2, 1), "1,0/1,refresh 1,0/3,refresh"),
      ("second_in_the_recovery", (4, 2, 1), "1,0/3,3 1,0/1,7"),
      ("second_in_the_reduction", (4, 2, 1), "1,0/2,2 1,0/0,reduce"),
      ("second_after_the_commit", (4, 2, 1), "1,0/2,vote 1,0/0,apply"),
      ("owner_of_two_stages", (4, 2, 1), "1,0/1,5 2,0/1,9"),
      ("owner_of_two_stages_later", (4, 2, 1), "1,0/0,5 3,0/0,vote"),
      ("one_node_is_left", (4, 2, 1), "1,0/1,5 2,0/0,0 3,0/2,ties"),
  )
  def test_some(self, size, text):
    outcome = make_trials(*size).run(make_case(text))
    self.assertEqual({*outcome.rungs}, {"shadow"})

  @parameterized.parameters("pair", "second", "two_stages")
  def test_random(self, kind):
    trials = make_trials(4, 2, 1)
    for case in cases.draw_deaths(kind, trials.steps, num_cases=4, seed=0):
      with self.subTest(str(case)):
        self.assertEqual({*trials.run(case).rungs}, {"shadow"})

  def test_spares_take_places_until_there_are_none(self):
    case = make_case("1,0/1,5 2,0/1,6 3,0/3,2")
    outcome = make_trials(4, 2, 1, spares=2).run(case)
    self.assertEqual(outcome.owners, ((0, 5, 2, 2),))

  def test_any_time(self):
    for text in ("2,0/1,,kill", "2,n3,,node", "2,,,leader", "2,1/0,,stop"):
      with self.subTest(text):
        outcome = make_trials(2, 2, 2).run(make_case(text))
        self.assertEqual(outcome.rungs, ("shadow",))


class LadderTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ("other_pipelines", (2, 2, 2), "1,1/0,3 1,1/1,3", {}, ["reroute"]),
      ("no_shadows", (2, 2, 2), "1,0/1,vote", {"mode": "none"}, ["reroute"]),
      (
          "new_pipelines",
          (2, 2, 2),
          "1,0/1,4",
          {"mode": "none", "recovery__reroute": "none"},
          ["reconfigure"],
      ),
      ("checkpoint", (4, 2, 1), "2,0/1,5 2,0/2,5", {}, ["checkpoint"]),
      ("nothing_held", (4, 2, 1), "2,0/3,0", {"mode": "none"}, ["checkpoint"]),
      ("all_die", (2, 2, 1), "2,,,all", {}, ["checkpoint"]),
  )
  def test_rung(self, size, text, changes, rungs):
    outcome = make_trials(*size, **changes).run(make_case(text))
    self.assertEqual(list(outcome.rungs)[-1:], rungs)

  def test_a_newcomer_takes_the_place(self):
    outcome = make_trials(4, 2, 1).run(make_case("1,0/2,5 2,,,join 4,0/0,2"))
    self.assertEqual(outcome.rungs, ("shadow", "shadow"))
    self.assertIn(4, outcome.owners[0])

  def test_who_will_be_preempted_hands_over(self):
    case = make_case("1,0/1,,notice 3,0/3,5")
    outcome = make_trials(4, 2, 1, spares=1).run(case)
    self.assertEqual(outcome.rungs, ("shadow",))
    self.assertNotIn(1, outcome.owners[0])

  def test_too_few_nodes_without_a_checkpoint(self):
    trials = make_trials(2, 2, 1, mode="none", recovery__checkpoint=False)
    with self.assertRaises(base.UnrecoverableHereError) as caught:
      trials.run(make_case("1,0/1,3"))
    self.assertEqual(caught.exception.stages, (1,))


class ScriptCase(parameterized.TestCase):
  """What is heard while others die decides how this member goes on."""

  def setUp(self):
    super().setUp()
    self.folder = self.enterContext(tempfile.TemporaryDirectory())

  def train(self, script, size=(2, 2, 1), text="", **changes):
    """Returns a worker that has trained; `script` is as for the fake."""
    trials = make_trials(*size, **changes)
    faults = make_case(text).faults if text else ()

    def wrap(cohort):
      self.local = cohort
      return fakes.ScriptedCohort(cohort, script)

    worker = trials.begin(faults, workdir_path=self.folder, wrap=wrap)
    worker.run(stop_at=3)
    got = trials_lib.bits_of(worker.engine.layer_states())
    self.assertEqual(got, trials.want(3).layers[0])
    return worker

  def kill(self, node):
    """Returns what kills a node while all are heard."""

    def die(said):
      del said
      fault = faults_lib.Fault(0, "0/0", at=node)  # Of no other meaning.
      self.local.strike(faults_lib.Due(fault, node))
      raise base.ViewChangedError(f"node {node} died")

    return die

  def tell(self, node, **facts):
    """Returns what lets a node say something else of itself."""

    def change(said):
      by_node = dict(said[0].by_node)
      by_node[node] = dataclasses.replace(by_node[node], **facts)
      return {0: run_state_lib.Statuses(by_node)}

    return change


class ScriptTest(ScriptCase):

  def test_votes_not_heard_but_the_commit_has_happened(self):
    ahead = self.tell(1, steps=2, holdings=holdings.NOTHING)
    script = {"vote 1": [self.kill(2)], "status": [None, ahead]}
    worker = self.train(script, spares=1)
    self.assertEqual(worker.state.steps, 3)
    lines = jsonl.read_lines(pathlib.Path(self.folder) / "metrics.jsonl")
    self.assertEqual(jsonl.column(lines, "loss")[0], (1, 2, 3))

  def test_votes_not_heard_and_no_commit(self):
    self.train({"vote 1": [self.kill(2)]}, spares=1)

  def test_what_is_settled_is_what_is_committed(self):
    """Whoever hears all votes says the same as who learns of them later."""
    make_trials(2, 2, 1, spares=1).want(3)  # Settles, too.
    settle = local_cohort.LocalCohort.settled
    with mock.patch.object(
        local_cohort.LocalCohort, "settled", autospec=True, side_effect=settle
    ) as settled:
      worker = self.train({"vote 1": [self.kill(2)]}, spares=1)
    said = [call.args[1] for call in settled.call_args_list]
    # At the start, twice for the second step, which is decided anew.
    self.assertEqual(said, [0, 1, 1, 2, worker.state.steps])

  def test_others_are_too_far(self):
    ahead = self.tell(1, steps=5)
    with self.assertRaisesRegex(base.CheckpointError, "shared workdir"):
      self.train({"vote 1": [self.kill(2)], "status": [None, ahead]}, spares=1)

  def test_a_second_death_while_the_first_is_agreed_on(self):
    worker = self.train(
        {"status": [None, self.kill(1)]}, size=(4, 2, 1), text="1,0/3,4"
    )
    self.assertEqual(set(worker.engine.owners[0]), {0, 2})

  def test_a_death_before_new_pipelines_count(self):
    """What was fetched for them is dropped; a checkpoint is taken instead."""
    changes = {"mode": "none", "recovery__reroute": "none"}
    worker = self.train(
        {"moved 1": [self.kill(3)]}, size=(2, 2, 2), text="1,0/1,4", **changes
    )
    self.assertEqual(worker.state.rollbacks, 1)

  def test_a_death_while_replicas_are_made(self):
    worker = self.train(
        {"moved 2": [self.kill(0)]}, size=(4, 2, 1), text="1,0/2,4"
    )
    self.assertEqual(set(worker.engine.owners[0]), {1, 3})

  def test_a_death_before_all_have_finished(self):
    worker = self.train({"finished": [self.kill(0)]}, num_steps=3)
    self.assertEqual(worker.state.layout.nodes, {1})

  def test_an_error_that_a_death_explains_is_not_raised_later(self):
    """A result fails, but this member hears of the death before it asks."""
    trials = make_trials(4, 2, 1)
    worker = trials.begin(make_case("1,0/3,4").faults, workdir_path=self.folder)
    cohort = worker._cohort
    strike = cohort.strike
    lost = jax.numpy.ones(3)
    lost.delete()

    def poison(due):
      failed = instruction_lib.Instruction(0, instruction_lib.Op.FORWARD, 0)
      worker._step._recorder.add(0, failed, lost)
      return strike(due)

    with mock.patch.object(cohort, "strike", poison):
      worker.run(stop_at=3)
    got = trials_lib.bits_of(worker.engine.layer_states())
    self.assertEqual(got, trials.want(3).layers[0])

  def test_an_error_that_no_death_explains(self):
    def fail(said):
      raise OSError("of another kind")

    with self.assertRaisesRegex(OSError, "of another kind"):
      self.train({"sums 1": [fail]})


class BadNumbersTest(ScriptCase):
  """A step without finite sums counts and changes nothing, whoever dies."""

  def poison(self, said):
    """Lets the loss of a step be no number."""
    bad = dataclasses.replace(said[0], loss=(float("nan"), said[0].loss[1]))
    return {0: bad}

  def train_poisoned(self, text="", script=None, size=(2, 2, 2), **changes):
    """Returns the state after steps 1 and 2, of which 2 has bad numbers."""
    script = {"sums 1": [self.poison] * 4} | (script or {})
    folder = self.enterContext(tempfile.TemporaryDirectory())
    trials = make_trials(*size, **changes)

    def wrap(cohort):
      self.local = cohort
      return fakes.ScriptedCohort(cohort, script)

    faults = make_case(text).faults if text else ()
    worker = trials.begin(faults, workdir_path=folder, wrap=wrap)
    worker.run(stop_at=2)
    self.assertEqual(worker.state.steps, 2)
    worker._check.check_now()
    lines = jsonl.read_lines(pathlib.Path(folder) / "metrics.jsonl")
    skipped = [l for l in lines if l.get("event") == "skipped"]
    self.assertEqual([l["step"] for l in skipped], [2])
    self.assertIn("not finite: loss=nan", skipped[0]["reason"])
    want = trials.want(1).layers[0]  # As if the second had not been.
    for pipeline in range(len(worker.engine.owners)):
      got = trials_lib.bits_of(worker.engine.layer_states(pipeline))
      self.assertEqual(got, want)

  @parameterized.parameters(
      "", "1,0/1,3", "1,0/0,norm", "1,0/1,refresh", "1,1/0,vote", "1,0/1,apply"
  )
  def test_deaths(self, text):
    self.train_poisoned(text)

  def test_by_state(self):
    self.train_poisoned("1,0/0,vote", size=(2, 2, 1), refresh="state")

  def test_votes_not_heard_but_the_commit_has_happened(self):
    ahead = self.tell(1, steps=2, holdings=holdings.NOTHING)
    script = {"vote 1": [self.kill(2)], "status": [None, ahead]}
    self.train_poisoned(script=script, size=(2, 2, 1), spares=1)

  def test_stop(self):
    wait = mock.patch.object(local_cohort.LocalCohort, "wait_change")
    with (
        wait as waits,
        self.assertRaisesRegex(base.NonFiniteError, "Step 2 has loss=nan"),
    ):
      self.train_poisoned(size=(2, 2, 1), optimizer__on_nonfinite="stop")
    waits.assert_not_called()  # No death explains it.


class MismatchTest(ScriptCase):
  """Copies that differ end the run, whoever holds them."""

  def spoil(self, stage, *nodes):
    """Returns what lets some nodes have other parameters of a stage."""

    def change(said):
      for number in nodes:
        node = self.worker.engine.nodes[number]
        state = node.state[stage]
        add = lambda a: a.at[(0,) * a.ndim].add(1e-6)
        node.state[stage] = state.replace(
            params=jax.tree.map(add, state.params)
        )
      return said

    return change

  def train_spoiled(self, script, size=(2, 2, 2), num_steps=4, **changes):
    trials = make_trials(*size, check_every_steps=2, **changes)
    folder = self.enterContext(tempfile.TemporaryDirectory())
    wrap = lambda cohort: fakes.ScriptedCohort(cohort, script)
    self.worker = trials.begin((), workdir_path=folder, wrap=wrap)
    self.worker.run(stop_at=num_steps)

  @parameterized.named_parameters(
      # Nodes 0 and 1 are the first pipeline, 2 and 3 the second.
      ("replica", (1, 0), {}, "0 . 1, 2, 3"),
      ("owner", (1, 1), {}, "1 . 0, 2, 3"),
      ("a_whole_pipeline", (0, 2, 3), {}, "0, 1 . 2, 3"),
      ("no_replicas", (0, 2), {"mode": "none"}, "0 . 2"),
  )
  def test_found_with_the_next_votes(self, where, changes, nodes):
    script = {"vote 0": [self.spoil(*where)]}
    with self.assertRaisesRegex(
        base.ReplicaMismatchError,
        rf"After step 2 .* \(segment {where[0]}\) differ .* nodes: {nodes}\.$",
    ):
      self.train_spoiled(script, **changes)

  def test_found_at_the_end(self):
    script = {"vote 2": [self.spoil(1, 0)]}
    with self.assertRaisesRegex(base.ReplicaMismatchError, "After step 3"):
      self.train_spoiled(script, num_steps=3)

  def test_what_another_member_says(self):

    def tell(said):
      vote = said[0]
      plain = json_lib.to_plain(vote)
      plain = json.loads(json.dumps(plain))  # As over sockets.
      plain["prints"]["nodes"]["1"]["head"] ^= 1 << 63
      return {0: vote, 1: json_lib.from_plain(step_lib.Vote, plain)}

    with self.assertRaisesRegex(
        base.ReplicaMismatchError, r"After step 2 .*'head' .* nodes: "
    ):
      self.train_spoiled({"vote 2": [tell]}, size=(2, 2, 1))

  def test_never(self):
    script = {"vote 0": [self.spoil(1, 0)]}
    trials = make_trials(2, 2, 2, check_every_steps=0)
    folder = self.enterContext(tempfile.TemporaryDirectory())
    wrap = lambda cohort: fakes.ScriptedCohort(cohort, script)
    self.worker = trials.begin((), workdir_path=folder, wrap=wrap)
    self.worker.run(stop_at=3)


class CompilationTest(absltest.TestCase):

  # Shares nothing, so that all programs are asked for again: 8 s.
  def test_a_join_asks_for_no_program_that_was_not_there(self):
    jax.clear_caches()
    asked, before = set(), set()
    programs = store_lib.use()
    self.addCleanup(store_lib.use)

    def note(compilation):
      asked.add(compilation.fingerprint)
      return programs.get(compilation)

    compat.intercept_compilations(note)
    config = make_config(2, 2, 1)
    trials = trials_lib.Trials(config, cache=program_cache.ProgramCache())
    folder = self.enterContext(tempfile.TemporaryDirectory())
    worker = trials.begin(
        make_case("1,0/1,5 2,,,join").faults, workdir_path=folder
    )
    strike = local_cohort.LocalCohort.strike

    def join(cohort, due):
      if due.fault.kind == "join":
        worker._compiler.wait()
        before.update(asked)
      return strike(cohort, due)

    with mock.patch.object(local_cohort.LocalCohort, "strike", join):
      worker.run(stop_at=4)
    self.assertIn(2, worker.state.layout.nodes)
    self.assertNotEmpty(before)
    self.assertEqual(asked, before)

  # Shares nothing, or programs of other trials would be found: 10 s.
  def test_nothing_is_compiled_between_death_and_commit(self):
    jax.clear_caches()
    trials = trials_lib.Trials(
        make_config(3, 2, 1, num_shares=2), cache=program_cache.ProgramCache()
    )
    compiled, seen = [], []
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, secs, **_: compiled.append(name)
        if "backend_compile" in name
        else None
    )
    self.addCleanup(jax.monitoring.clear_event_listeners)
    add, ready = run_log.RunLog.add, run_log.RunLog.commit

    def lose(log, recovery):
      compiled.clear()
      add(log, recovery)

    def commit(log, *args, **kwargs):
      if log._recoveries:
        seen.append(len(compiled))
      ready(log, *args, **kwargs)

    with (
        mock.patch.object(run_log.RunLog, "add", lose),
        mock.patch.object(run_log.RunLog, "commit", commit),
    ):
      trials.run(make_case("1,0/1,3"))
      trials.run(make_case("1,0/2,3 2,0/0,reduce"))
    self.assertEqual(seen[0], 0)
    jax.jit(lambda a: a + 43)(np.ones(3))  # The listener does listen.
    self.assertNotEmpty(compiled)

  # As above: 10 s.
  def test_an_evaluation_after_a_death_finds_its_programs(self):
    changes = {"evaluate__every_steps": 2, "rereplicate": "at_repair"}
    config = make_config(3, 2, 1, **changes)
    trials = trials_lib.Trials(config, cache=program_cache.ProgramCache())
    folder = self.enterContext(tempfile.TemporaryDirectory())
    worker = trials.begin(make_case("2,0/1,3").faults, workdir_path=folder)
    compiled, main = [], threading.main_thread()
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, secs, **_: compiled.append(name)
        if "/compile/" in name and threading.current_thread() is main
        else None
    )
    self.addCleanup(jax.monitoring.clear_event_listeners)
    evaluate, seen = evaluation.Evaluation.run, []
    compile_jobs, compiled_for = compile_ahead.compile_jobs, []

    def note(engine, **options):
      compiled_for.append(list(engine.owners))
      return compile_jobs(engine, **options)

    def wait_and_evaluate(self, steps):
      worker._compiler.wait()
      compiled.clear()
      loss = evaluate(self, steps)
      seen.append((steps, len(compiled)))
      return loss

    with (
        mock.patch.object(evaluation.Evaluation, "run", wait_and_evaluate),
        mock.patch.object(compile_ahead, "compile_jobs", note),
    ):
      worker.run(stop_at=5)
    self.assertEqual(seen[-1], (4, 0))
    # Whatever the new roles need next is compiled, too, once.
    self.assertEqual(compiled_for.count(list(worker.engine.owners)), 1)


class BrokenTest(parameterized.TestCase):
  """Each of these breaks something on purpose, which must be noticed."""

  def test_skipped_backward_pass(self):
    run = node_lib.Node.run
    skipped = instruction_lib.Instruction(0, instruction_lib.Op.BACKWARD, 1)

    def skip(node, instruction):
      if node.node == 3 and instruction == skipped:
        return node.store.accumulators[0, 0].stats
      return run(node, instruction)

    with mock.patch.object(node_lib.Node, "run", skip):
      with self.assertRaises(trials_lib.TroubleError):
        make_trials(4, 2, 1).run(make_case("1,0/0,4"))

  def test_wrong_order_of_shares(self):
    trials = make_trials(2, 4, 1, num_shares=4)
    case, add = make_case("1,0/1,4"), share_sum.ShareSum.__call__
    trials.run(case)

    def add_backwards(total, held):
      backwards = dict(zip(held, reversed(held.values()), strict=True))
      return add(total, backwards)

    with mock.patch.object(share_sum.ShareSum, "__call__", add_backwards):
      with self.assertRaises(trials_lib.TroubleError):
        trials.run(case)

  # The death of a virtual node must not be less than that of a real one.
  @parameterized.parameters("5", "vote", "apply")
  def test_arrays_of_the_dead_are_gone(self, at):
    held, kill = [], engine_lib.Engine.kill

    def watch(engine, number):
      node = engine.nodes[number]
      held.extend(
          jax.tree.leaves([[*node.state.values()], node.store.arrays()])
      )
      kill(engine, number)

    with mock.patch.object(engine_lib.Engine, "kill", watch):
      make_trials(4, 2, 1, num_shares=2).run(make_case(f"1,0/2,{at}"))
    self.assertNotEmpty(held)
    self.assertTrue(all(array.is_deleted() for array in held))


if __name__ == "__main__":
  absltest.main()

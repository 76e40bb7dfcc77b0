"""What is heard from others decides how a member goes on."""

import dataclasses
import itertools
import json
import math
from unittest import mock

from absl.testing import parameterized
import jax

from bamboo_jax import base
from bamboo_jax.base import json as json_lib
from bamboo_jax.checkpoint import arrays as layer_arrays
from bamboo_jax.faults import faults as faults_lib
from bamboo_jax.metrics import jsonl
from bamboo_jax.schedule import holdings, instruction as instruction_lib
from bamboo_jax.training import (
    cohort as cohort_lib,
    failures as failures_lib,
    run_state as run_state_lib,
    step as step_lib,
)
from tests import fakes, folders, samples
from tests.verify import small


class ScriptCase(folders.FolderCase):
  """Trains with a script of what is heard; each run of a test begins in its folder."""

  def begin(self, script, line="2x2x1"):
    """Returns a worker; `script` is as for the fake, the `line` as for `small`."""
    self.trials, case = small.read(line)

    def wrap(cohort):
      self.local = cohort
      return fakes.ScriptedCohort(cohort, script)

    self.worker = self.trials.begin(case.faults, workdir_path=self.folder, wrap=wrap)
    return self.worker

  def lines(self, event=None):
    """Returns what is logged of steps, or of an event."""
    lines = jsonl.read_lines(self.folder / "metrics.jsonl")
    return [line for line in lines if line.get("event") == event]

  def train(self, *args, **options):
    """Returns a worker that has trained; arguments are those of `begin`."""
    worker = self.begin(*args, **options)
    worker.run(stop_at=3)
    got = layer_arrays.digest(worker.engine.layer_states())
    self.assertEqual(got, self.trials.want(3).layers[0])
    return worker

  def kill(self, node):
    """Returns what kills a node while all are heard."""

    def die(said):
      del said
      fault = faults_lib.Fault(0, "0/0", at=node)  # Of no other meaning.
      self.local.strike(faults_lib.Due(fault, node))
      raise base.ViewChangedError(f"node {node} died")

    return die

  def tell(self, node, holds=None, **facts):
    """Returns a change of what is heard: a node says other things, as if it were elsewhere."""

    def change(said):
      held = dict(said[0].holdings)
      own = held.pop(node) if holds is None else holds
      other = dataclasses.replace(said[0], holdings={node: own}, **facts)
      rest = {n: h for n, h in held.items() if n != node}
      return {0: dataclasses.replace(said[0], holdings=rest), node: other}

    return change


class ScriptTest(ScriptCase):

  @parameterized.parameters(0, 1)
  def test_votes_not_heard_but_the_commit_has_happened(self, step):
    ahead = self.tell(1, steps=step + 1, holds=holdings.NOTHING)
    script = {f"vote {step}": [self.kill(2)], "status": [None, ahead]}
    worker = self.train(script, "2x2x1 spares=1")
    self.assertEqual(worker.state.steps, 3)
    self.assertEqual(jsonl.column(self.lines(), "loss")[0], (1, 2, 3))

  def test_what_is_settled_is_what_is_committed(self):
    """Whoever hears all votes says the same as who learns of them later."""
    small.read("2x2x1 spares=1")[0].want(3)  # Settles, too.
    settle = cohort_lib.LocalCohort.settled
    with mock.patch.object(
        cohort_lib.LocalCohort, "settled", autospec=True, side_effect=settle
    ) as settled:
      worker = self.train({"vote 1": [self.kill(2)]}, "2x2x1 spares=1")
    # At the start, and once for each step; the second step is decided twice.
    self.assertEqual(settled.call_count, 2 + worker.state.steps)

  def test_others_are_too_far(self):
    ahead = self.tell(1, steps=5)
    with self.assertRaisesRegex(base.NodeFailedError, "same workdir"):
      self.train({"vote 1": [self.kill(2)], "status": [None, ahead]}, "2x2x1 spares=1")

  def test_a_second_death_while_the_first_is_agreed_on(self):
    worker = self.train({"status": [None, self.kill(1)]}, "4x2x1 1,0/3,4")
    self.assertEqual(set(worker.engine.owners[0]), {0, 2})

  def test_a_death_before_new_pipelines_count(self):
    """What was fetched for them is dropped; a checkpoint is taken instead."""
    line = "2x2x2 1,0/1,4 mode=none recovery__reroute=False"
    worker = self.train({"moved 1": [self.kill(3)]}, line)
    self.assertEqual(worker.state.rollbacks, 1)

  def test_who_missed_that_all_have_gone_back(self):
    layouts, carry_out = [], run_state_lib.RunState.carry_out

    def note(state, change, **options):
      layouts.append(change.layout)
      carry_out(state, change, **options)

    def went_back(said):
      facts = dict(steps=0, version=1, rollbacks=1, layout=layouts[0])
      return self.tell(2, **facts, holds=holdings.NOTHING)(said)

    with mock.patch.object(run_state_lib.RunState, "carry_out", note):
      worker = self.train(
          {"moved 1": [self.kill(3)], "status": [None, None, went_back]},
          "2x2x1 1,0/1,4 mode=none spares=2",
      )
    self.assertEqual((worker.state.rollbacks, len(layouts)), (1, 1))
    self.assertEqual(jsonl.column(self.lines(), "loss")[0], (1, 2, 3))

  def test_a_death_while_replicas_are_made(self):
    worker = self.train({"moved 2": [self.kill(0)]}, "4x2x1 1,0/2,4")
    self.assertEqual(set(worker.engine.owners[0]), {1, 3})

  def test_a_death_before_all_have_finished(self):
    worker = self.train({"finished": [self.kill(0)]}, "2x2x1 num_steps=3")
    self.assertEqual(worker.state.layout.nodes, {1})

  def test_an_error_that_a_death_explains_is_not_raised_later(self):
    """A result fails, but this member hears of the death before it asks."""
    lost = jax.numpy.ones(3)
    lost.delete()

    strike = cohort_lib.LocalCohort.strike

    def poison(cohort, due):
      failed = instruction_lib.Instruction(0, instruction_lib.Op.FORWARD, 0)
      self.worker._step._recorder.add(0, failed, lost)
      return strike(cohort, due)

    with mock.patch.object(cohort_lib.LocalCohort, "strike", poison):
      self.train({}, "4x2x1 1,0/3,4")

  def test_a_node_dies_that_has_said_why_the_run_must_end(self):
    """The others do not meet its error, so they go on to the end."""
    fails = lambda said: {0: dataclasses.replace(said[0], failure=failures_lib.Failure("x"))}
    script = {"vote 1": [fails], "save 1 0": [self.kill(2)]}
    worker = self.train(script, "2x2x1 spares=1")
    self.assertEqual(worker.state.steps, 3)

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

  def train_poisoned(self, line="2x2x2", script=None):
    """Returns the state after steps 1 and 2, of which 2 has bad numbers."""
    script = {"sums 1": [self.poison] * 4} | (script or {})
    worker = self.begin(script, line)
    worker.run(stop_at=2)
    self.assertEqual(worker.state.steps, 2)
    worker.state.compare_copies("again", worker._journal.during)
    skipped = self.lines("skipped")
    self.assertEqual([l["step"] for l in skipped], [2])
    self.assertIn("not finite: loss=nan", skipped[0]["reason"])
    want = self.trials.want(1).layers[0]  # As if the second had not been.
    for pipeline in range(len(worker.engine.owners)):
      got = layer_arrays.digest(worker.engine.layer_states(pipeline))
      self.assertEqual(got, want)

  @parameterized.parameters(
      *("2x2x2", "2x2x2 1,0/1,apply", "2x2x1 1,0/0,vote refresh=state"),
      *samples.draw(
          ("2x2x2 1,0/1,3", "2x2x2 1,0/0,norm", "2x2x2 1,0/1,refresh", "2x2x2 1,1/0,vote"), 1
      ),
  )
  def test_deaths(self, line):
    self.train_poisoned(line)

  def test_votes_not_heard_but_the_commit_has_happened(self):
    ahead = self.tell(1, steps=2, holds=holdings.NOTHING)
    script = {"vote 1": [self.kill(2)], "status": [None, ahead]}
    self.train_poisoned("2x2x1 spares=1", script)

  def test_stop(self):
    wait = mock.patch.object(cohort_lib.LocalCohort, "wait_change")
    with wait as waits, self.assertRaisesRegex(base.NonFiniteError, "Step 2 has loss=nan"):
      self.train_poisoned("2x2x1 optimizer__on_nonfinite=stop")
    waits.assert_not_called()  # No death explains it.

  @parameterized.parameters(
      *samples.draw(itertools.product(["skip", "apply"], [0, 1], ["params", "slots"]), 2)
  )
  def test_state_that_is_not_finite_ends_the_run(self, on_nonfinite, stage, part):

    def spoil(said):
      for node in self.worker.engine.nodes.values():
        for name, layer in node.layers_of(stage).items():
          worse = jax.tree.map(lambda a: (a + math.nan).astype(a.dtype), getattr(layer, part))
          node.state[name] = layer.replace(**{part: worse})
      return said

    script = {"vote 0": [spoil]}
    worker = self.begin(script, f"2x2x1 optimizer__on_nonfinite={on_nonfinite}")
    with self.assertRaisesRegex(
        base.NonFiniteError, "^Training stops before step 2: .*: [a-z]+/.* is not finite"
    ):
      worker.run(stop_at=9)
    self.assertEqual(worker.state.steps, 1)

  def test_state_of_another_member_is_not_finite(self):

    def tell(said):
      bad = dataclasses.replace(said[0], nonfinite="head: params/w")
      return {0: said[0], 1: bad}

    worker = self.begin({"vote 1": [tell]})
    with self.assertRaisesRegex(base.NonFiniteError, "before step 2: head: params/w is not finite"):
      worker.run(stop_at=3)


class MismatchTest(ScriptCase):
  """Copies that differ end the run, whoever holds them."""

  def spoil(self, stage, *nodes):
    """Returns what lets some nodes have other parameters of a stage."""

    def change(said):
      for number in nodes:
        node = self.worker.engine.nodes[number]
        add = lambda a: a.at[(0,) * a.ndim].add(1e-6)
        for name, layer in node.layers_of(stage).items():
          node.state[name] = layer.replace(params=jax.tree.map(add, layer.params))
      return said

    return change

  def train_spoiled(self, script, words="", size="2x2x2", num_steps=4):
    self.begin(script, f"{size} check_every_steps=2 {words}").run(stop_at=num_steps)

  @parameterized.parameters(
      # Nodes 0 and 1 are the first pipeline, 2 and 3 the second.
      ((1, 0), "", "0 . 1, 2, 3"),
      ((1, 1), "", "1 . 0, 2, 3"),
      ((0, 2, 3), "", "0, 1 . 2, 3"),
      ((0, 2), "mode=none", "0 . 2"),
  )
  def test_found_with_the_next_votes(self, where, words, nodes):
    script = {"vote 0": [self.spoil(*where)]}
    with self.assertRaisesRegex(
        base.ReplicaMismatchError, rf"After step 2 .* differ between nodes: {nodes}\.$"
    ):
      self.train_spoiled(script, words)

  def test_found_at_the_end(self):
    script = {"vote 2": [self.spoil(1, 0)]}
    with self.assertRaisesRegex(base.ReplicaMismatchError, "After step 3"):
      self.train_spoiled(script, num_steps=3)

  def test_copies_made_after_the_last_step_are_compared_once(self):
    worker = self.begin({}, "3x2x1 1,0/1,4")
    worker.run(stop_at=2)  # In a cluster nobody hears a word said twice.
    self.assertEqual(worker.engine.owners, [(0, 0, 2)])

  def test_what_another_member_says(self):

    def tell(said):
      vote = said[0]
      plain = json.loads(json.dumps(json_lib.to_plain(vote)))  # As over sockets.
      plain["prints"]["nodes"]["1"]["head"] ^= 1 << 63
      return {0: vote, 1: json_lib.from_plain(step_lib.Vote, plain)}

    with self.assertRaisesRegex(base.ReplicaMismatchError, r"After step 2 .*'head' .* nodes: "):
      self.train_spoiled({"vote 2": [tell]}, size="2x2x1")

  def test_never(self):
    script = {"vote 0": [self.spoil(1, 0)]}
    self.train_spoiled(script, "check_every_steps=0", num_steps=3)

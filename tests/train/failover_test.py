"""A step in which nodes die ends as it would have without, to the bit.

This is a sample that covers the kinds of deaths; `launch.sweep_faults` runs all
of them. Compiling is what takes time, more than a second for each stage and
device, so all trials but one share their programs.
"""

import functools
from unittest import mock

from absl.testing import absltest
from absl.testing import parameterized
import jax
import numpy as np

from bamboo_jax import base
from bamboo_jax.faults import fault_file
from bamboo_jax.runtime import node as node_lib
from bamboo_jax.runtime import program_cache
from bamboo_jax.runtime.phases import evaluate
from bamboo_jax.runtime.phases import reduce
from bamboo_jax.runtime.phases import replicas
from bamboo_jax.runtime.wire import share_sum
from bamboo_jax.schedule import instruction as instruction_lib
from bamboo_jax.train import build
from bamboo_jax.train import membership as membership_lib
from configs import sweep_faults
from launch.fault_sweep import cases
from launch.fault_sweep import trials as trials_lib

_CACHE = program_cache.ProgramCache()


def make_config(
    num_stages, num_microbatches, num_pipelines, *, num_shares=None, **changes
):
  """Returns a config of a smaller model; `changes` are of its redundancy."""
  config = sweep_faults.get_config()
  config.model.options.num_blocks = 1
  config.pipeline.num_stages = num_stages
  config.pipeline.num_microbatches = num_microbatches
  config.pipeline.num_pipelines = num_pipelines
  config.pipeline.num_shares = num_shares
  config.redundancy.update(changes)
  return config


@functools.cache
def make_trials(*size, **changes):
  config = make_config(*size, **changes)
  return trials_lib.Trials(config, cache=_CACHE, whole=make_whole())


@functools.cache
def make_whole():
  return build.make_task(make_config(2, 1, 1)).whole


def make_case(text):
  """Returns deaths written as "1,0/2,5 1,1/0,reduce": step, place, point."""
  lines = "\n".join(f"{fault},kill" for fault in text.split())
  return cases.Case(fault_file.parse_faults(lines, source="test"))


class SurvivedTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ("two_stages", (2, 2, 1), 1, {}),
      ("two_pipelines", (2, 2, 2), 2, {}),
      ("four_stages", (4, 2, 1), 2, {}),
      ("lazy", (4, 2, 1), 5, {"mode": "lazy"}),
      ("bubble", (4, 2, 1), 5, {"mode": "bubble"}),
      ("state", (2, 2, 1), 4, {"refresh": "state"}),
      ("host", (2, 2, 1), 4, {"slots": "host"}),
  )
  def test_one_death(self, size, every, changes):
    trials = make_trials(*size, **changes)
    for case in cases.single_deaths(trials.steps, every=every):
      with self.subTest(str(case)):
        self.assertEqual(trials.run(case), ())

  @parameterized.named_parameters(
      ("both_pipelines", (2, 2, 2), "1,0/0,3 1,1/1,5"),
      ("both_pipelines_one_stage", (2, 2, 2), "1,0/1,reduce 1,1/1,reduce"),
      ("both_pipelines_in_phases", (2, 2, 2), "1,0/0,norm 1,1/0,apply"),
      ("both_pipelines_in_turn", (2, 2, 2), "1,0/0,3 2,1/0,3"),
      ("apart", (4, 2, 1), "1,0/0,4 1,0/2,6"),
      ("apart_at_once", (4, 2, 1), "1,0/1,refresh 1,0/3,refresh"),
      ("second_in_the_recovery", (4, 2, 1), "1,0/3,3 1,0/1,7"),
      ("second_in_the_reduction", (4, 2, 1), "1,0/2,2 1,0/0,reduce"),
      ("second_after_the_commit", (4, 2, 1), "1,0/2,vote 1,0/0,apply"),
      ("owner_of_two_stages", (4, 2, 1), "1,0/1,5 2,0/1,9"),
      ("owner_of_two_stages_later", (4, 2, 1), "1,0/0,5 3,0/0,vote"),
      ("successor", (4, 2, 1), "1,0/1,apply 2,0/2,2"),
      ("one_node_is_left", (4, 2, 1), "1,0/1,5 2,0/0,0 3,0/2,ties"),
  )
  def test_some_deaths(self, size, text):
    self.assertEqual(make_trials(*size).run(make_case(text)), ())

  @parameterized.named_parameters(
      ("pair", (4, 2, 1), "pair"),
      ("second", (4, 2, 1), "second"),
      ("two_stages", (4, 2, 1), "two_stages"),
      ("pair_of_two_pipelines", (2, 2, 2), "pair"),
  )
  def test_random_deaths(self, size, kind):
    trials = make_trials(*size)
    for case in cases.draw_deaths(kind, trials.steps, num_cases=8, seed=0):
      with self.subTest(str(case)):
        self.assertEqual(trials.run(case), ())

  def test_spares_take_places_until_there_are_none(self):
    trials = make_trials(4, 2, 1, spares=2)
    nodes, owners = trials.begin(), []
    for step, text in enumerate(("1,0/1,5", "2,0/1,6", "3,0/3,2"), 1):
      trials.run_step(nodes, step, make_case(text).faults)
      owners.append(nodes.engine.owners[0])
    self.assertEqual(owners, [(0, 4, 2, 3), (0, 5, 2, 3), (0, 5, 2, 2)])

  def test_evaluation_after_it(self):
    trials = make_trials(2, 2, 2)
    losses = []
    for text in ("", "1,0/1,4 1,1/0,4"):
      nodes = trials.begin()
      trials.run_step(nodes, 1, make_case(text).faults)
      batches = (trials.batches.eval_microbatch(0, m) for m in range(4))
      losses.append(
          evaluate.add_losses(evaluate.evaluate(nodes.engine, batches))
      )
    self.assertEqual(losses[0], losses[1])


class LostTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ("two_stages", (2, 2, 2), "1,1/0,3 1,1/1,4", (0, 1)),
      ("neighbours", (4, 2, 1), "1,0/1,5 1,0/2,9", (2,)),
      ("first_and_last", (4, 2, 1), "1,0/0,vote 1,0/3,vote", (0,)),
  )
  def test_owner_and_shadow(self, size, text, stages):
    self.assertEqual(make_trials(*size).run(make_case(text)), stages)

  @parameterized.named_parameters(
      ("owner_of_two_stages", "1,0/1,5 2,0/1,9", (1,)),
      ("successor", "1,0/1,5 2,0/2,3", (2,)),
  )
  def test_no_new_replicas_before_the_repair(self, text, stages):
    trials = make_trials(4, 2, 1, rereplicate="at_repair")
    case = make_case(text)
    self.assertEqual(trials.run(case), stages)
    nodes = trials.begin()
    trials.run_step(nodes, 1, case.faults[:1])
    with self.assertRaisesRegex(
        base.UnrecoverableHereError, f"owner and replica of stage {stages[0]};"
    ):
      trials.run_step(nodes, 2, case.faults[1:])

  def test_without_replicas(self):
    trials = make_trials(4, 2, 1, mode="none")
    self.assertEqual(trials.run(make_case("1,0/3,0")), (3,))

  # The death of a virtual node must not be less than that of a real one.
  @parameterized.parameters("5", "vote", "apply")
  def test_arrays_of_the_dead(self, at):
    trials = make_trials(4, 2, 1, num_shares=2)
    nodes, held = trials.begin(), []
    engine, kill = nodes.engine, nodes.engine.kill

    def watch(number):
      node = engine.nodes[number]
      held.extend(
          jax.tree.leaves([[*node.state.values()], node.store.arrays()])
      )
      if at != "5":
        names = {layer.name for layer in engine.specs[number].layers}
        grads = reduce.grads(engine)
        held.extend(jax.tree.leaves([grads[name] for name in names]))
      kill(number)

    with mock.patch.object(engine, "kill", watch):
      trials.run_step(nodes, 1, make_case(f"1,0/2,{at}").faults)
    self.assertNotEmpty(held)
    self.assertTrue(all(array.is_deleted() for array in held))


class CompilationTest(absltest.TestCase):

  # Shares nothing, or programs of other trials would be found: 10 s.
  def test_nothing_is_compiled_before_the_commit(self):
    jax.clear_caches()
    trials = trials_lib.Trials(
        make_config(3, 2, 1, num_shares=2), cache=program_cache.ProgramCache()
    )
    compiled = []
    jax.monitoring.register_event_duration_secs_listener(
        lambda name, secs, **_: compiled.append(name)
        if "backend_compile" in name
        else None
    )
    self.addCleanup(jax.monitoring.clear_event_listeners)
    repair = membership_lib.Membership.repair

    def check_and_repair(membership, step):
      self.assertEmpty(compiled)
      repair(membership, step)

    patch = mock.patch.object(
        membership_lib.Membership, "repair", check_and_repair
    )
    # After the commit programs are compiled for the death in step 2.
    texts = ["1,0/1,3 2,0/1,3", "1,0/2,3 2,0/0,reduce"]
    for place in ("0/0", "0/1", "0/2"):
      texts += [f"1,{place},{at}" for at in ("3", "reduce", "apply")]
    for text in texts:
      nodes = trials.begin()
      for fault in make_case(text).faults:
        compiled.clear()
        with self.subTest(text), patch:
          trials.run_step(nodes, fault.step, [fault])
    jax.jit(lambda a: a + 43)(np.ones(3))  # The listener does listen.
    self.assertNotEmpty(compiled)


class BrokenTest(parameterized.TestCase):
  """Each of these breaks something on purpose, which must be noticed."""

  @parameterized.parameters("0", "ties")
  def test_stale_replica(self, at):
    trials = make_trials(4, 2, 1)
    nodes = trials.begin()
    shadow = nodes.engine.nodes[1]
    stale = jax.tree.map(np.array, shadow.state[2])
    trials.run_step(nodes, 1)
    shadow.state[2] = jax.device_put(stale, shadow.device)
    with self.assertRaisesRegex(trials_lib.TroubleError, "^step 2: "):
      trials.run_step(nodes, 2, make_case(f"2,0/2,{at}").faults)

  def test_flipped_bit_of_a_replica(self):
    trials = make_trials(4, 2, 1)
    nodes = trials.begin()
    shadow = nodes.engine.nodes[1]
    state = jax.tree.map(np.array, shadow.state[2])
    name = sorted(state.slots)[-1]
    slot = max(jax.tree.leaves(state.slots[name]), key=lambda a: a.size)
    slot.view(np.uint32).flat[3] ^= 1
    shadow.state[2] = jax.device_put(state, shadow.device)
    with self.assertRaisesRegex(
        base.ReplicaMismatchError,
        rf"After step 0 the replica of layer '{name}' \(stage 2\) on node 1 "
        "differs from its owner, node 2",
    ):
      replicas.check_replicas(nodes.engine, 0)

  def test_skipped_backward_pass(self):
    run = node_lib.Node.run
    skipped = instruction_lib.Instruction(0, instruction_lib.Op.BACKWARD, 1)

    def skip(node, instruction):
      if node.node == 3 and instruction == skipped:
        return node.store.accumulators[0, 0].stats
      return run(node, instruction)

    with mock.patch.object(node_lib.Node, "run", skip):
      with self.assertRaisesRegex(trials_lib.TroubleError, "state of .*embed"):
        make_trials(4, 2, 1).run(make_case("1,0/0,4"))

  def test_backward_pass_of_an_accumulator_that_was_not_lost(self):
    backward = node_lib.Node._backward

    def lose(node, stage, microbatch):
      if (node.node, stage, microbatch) == (1, 2, 1):
        del node.store.accumulators[2, 0]
      return backward(node, stage, microbatch)

    with mock.patch.object(node_lib.Node, "_backward", lose):
      with self.assertRaises(trials_lib.TroubleError):
        make_trials(4, 2, 1).run(make_case("1,0/2,4"))

  def test_wrong_order_of_shares(self):
    trials = make_trials(2, 4, 1, num_shares=4)
    case, add = make_case("1,0/1,4"), share_sum.ShareSum.__call__
    self.assertEqual(trials.run(case), ())

    def add_backwards(program, held):
      backwards = dict(zip(held, reversed(held.values()), strict=True))
      return add(program, backwards)

    with mock.patch.object(share_sum.ShareSum, "__call__", add_backwards):
      with self.assertRaisesRegex(trials_lib.TroubleError, "^step 1: "):
        trials.run(case)


if __name__ == "__main__":
  absltest.main()

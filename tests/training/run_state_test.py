"""What members remember of the run, without an engine that computes."""

import dataclasses
from unittest import mock

from absl.testing import absltest, parameterized
import numpy as np
import optax

from bamboo_jax import base
from bamboo_jax.base import types
from bamboo_jax.recovery import assignment, layout as layout_lib, slowness
from bamboo_jax.runtime.stage import spec as spec_lib
from bamboo_jax.runtime.wire import endpoints, transport as transport_lib
from bamboo_jax.schedule import failover
from bamboo_jax.training import run_state as run_state_lib
from tests import layouts, members
from tests.training import deaths_test


class Parts:
  """Cohort, engine, transfer and writer; records what they are asked."""

  def __init__(self, rules):
    self.rules = rules
    self.asked = []
    self.hosted = frozenset({0})
    self.view = self.newest = members.view(1, 0, 1, 2, 3)
    self.saved, self.damaged, self.others = [], {}, {}
    self.num_skipped = 3  # Of the checkpoint restored last.
    self.state = run_state_lib.RunState(self, self, rules=self, writer=self)
    self.state.fetch, self.state.install = self.fetch, self.install

  def among(self, zones):
    del zones
    return self

  def improve(self, layout, members, **options):
    self.asked.append("improve")
    return self.rules.improve(layout, members, **options)

  def set_pipelines(self, roles, lines):
    self.asked.append(f"pipelines {roles} {lines}")

  def say(self, **changes):
    self.asked += [f"say {name} {sorted(value)}" for name, value in changes.items()]

  def fetch(self, copies, *, version):
    self.asked.append(f"fetch {len(copies)} for {version}")
    return {}

  def gather(self, key, value):
    self.asked.append(key)
    # Another member has seen less.
    return {0: value, 1: self.others.get(key, 7)}

  def wait_members(self, count, *, why):
    del why
    self.asked.append(f"wait for {count}")
    self.newest = members.view(9, 0, 1, 2, 3, 4, 5)

  def adopt(self, number):
    self.asked.append(f"adopt {number}")

  def install(self):
    self.asked.append(f"install {' '.join(sorted(f'{n}/{s}' for n, s in self.state._fetched))}")

  def steps(self):
    return tuple(self.saved)

  def restore(self, steps, names):
    self.asked.append(f"restore {steps}: {' '.join(names)}")
    if steps in self.damaged:
      if self.damaged[steps]:
        self.saved.remove(steps)  # This member does not use it again.
      raise base.DamagedCheckpointError(f"{steps} is damaged.")
    return {name: spec_lib.LayerState(name, (), {}) for name in names}


class RunStateTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.rules = layouts.make_rules(2, 2)
    self.parts = Parts(self.rules)
    self.state = self.parts.state

  def take(self):
    """Returns what was asked since the last call."""
    asked, self.parts.asked = self.parts.asked, []
    return asked

  def explain(self, reason, *, acts):
    self.parts.asked.append(f"{reason} {acts}")

  def start(self, *owners):
    roles = [failover.Roles.initial(o) for o in owners]
    self.state.steps, self.state.version = 3, 0
    pipelines = layouts.make_pipelines(roles)
    self.state.set_layout(self.rules.start(pipelines))
    return self.take()

  def lay_out(self):
    """Returns a layout of two stages, of layers a0 b0 and a1 b1."""
    self.parts.specs = {s: mock.Mock(names=(f"a{s}", f"b{s}")) for s in (0, 1)}
    pipelines = layouts.make_pipelines([failover.Roles.initial((0, 1))])
    return self.rules.start(pipelines)

  @parameterized.parameters(([3, 6, 9], [9, 6], [9, 6, 3]), ([6], [6], [6, 0]))
  def test_who_begins_takes_the_newest_that_is_not_damaged(self, saved, damaged, tried):
    self.parts.saved, self.parts.damaged = saved, dict.fromkeys(damaged, True)
    self.state.begin(self.lay_out())
    *restored, _, _, installed = self.take()
    self.assertEqual(restored, [f"restore {n}: a0 b0 a1 b1" for n in tried])
    self.assertEqual(installed, "install 0/0 0/1")  # Owned stages and replicas.
    self.assertEqual((self.state.steps, self.state.version), (tried[-1], 0))
    self.assertEqual(self.state.num_skipped, 3)
    self.assertEqual(self.state.status({}, since_secs=0).damaged, tuple(damaged))

  def test_damaged_weights_that_were_given_are_an_error(self):
    self.parts.saved, self.parts.damaged = [], {0: False}
    layout = self.lay_out()
    with self.assertRaises(base.DamagedCheckpointError):
      self.state.begin(layout)
    change = assignment.Decision("checkpoint", layout, "", rolls_back=True)
    with self.assertRaises(base.DamagedCheckpointError):
      self.state.carry_out(change, restored=0)

  @parameterized.parameters(
      # What this member and another have; which are damaged here and there.
      ([3, 6], (3, 6), [6], [], [6, 3]),
      ([3, 6], (3, 6), [], [6], [6, 3]),
      ([2, 3, 6], (2, 3, 6), [6], [3], [6, 3, 2]),
      ([2, 6], (2, 3, 6), [], [6], [6, 2]),  # Only the other sees 3.
      ([6], (6,), [], [6], [6, 0]),
      ([3, 6], (3, 6), [], [], [6]),
  )
  def test_all_go_back_to_what_all_can_read(self, mine, others, here, there, tried):
    self.parts.saved, self.parts.damaged = mine, dict.fromkeys(here, True)
    self.parts.others = {
        f"restored 0 {step}": run_state_lib.Restored(step in there, others) for step in tried
    }
    layout = self.lay_out()
    change = assignment.Decision("checkpoint", layout, "", rolls_back=True)
    self.state.carry_out(change, restored=6)
    want = []
    for step in tried:
      want += [f"restore {step}: a0 b0 a1 b1", f"restored 0 {step}"]
    asked = self.take()
    self.assertEqual(asked[: len(want)], want)
    self.assertEqual(asked[len(want) :][:2], ["moved 0", "install 0/0 0/1"])
    self.assertEqual((self.state.steps, self.state.rollbacks), (tried[-1], 1))
    self.assertEqual(self.state.num_skipped, 3)

  def test_only_the_first_node_that_owns_something_tells_others(self):
    asked = self.start((0, 1), (2, 3))
    self.assertLen(asked, 2)
    self.assertRegex(asked[1], r"^say layout .*'members', .*'pipelines'")
    self.parts.hosted = frozenset({1})
    self.assertLen(self.start((0, 1), (2, 3)), 1)

  def test_updates_are_counted_by_the_state(self):
    """Steps that are skipped are none, so they are fewer than steps."""
    params = {"w": np.ones(2)}
    self.state.steps = 9
    for rate, want in ((lambda count: 0.1 / (1 + count), 2), (0.1, 9)):
      optimizer = optax.adamw(rate)
      slots = optimizer.init(params)
      for _ in range(2):
        _, slots = optimizer.update(params, slots, params)
      state = {"a": spec_lib.LayerState(params, slots, ())}
      self.parts.nodes = {3: mock.Mock(state={}), 4: mock.Mock(state=state)}
      self.assertEqual(self.state.num_updates, want)

  def test_the_first_that_lives_writes(self):
    self.start((0, 1), (2, 3))
    for alive, hosted, is_writer in (
        ((0, 1, 2, 3), {0}, True),
        ((0, 1, 2, 3), {1}, False),
        ((1, 2, 3), {1}, True),  # The writer has died.
        ((1, 2, 3), {2}, False),
        ((4, 5), {4}, True),  # No node of the layout lives.
        ((), {0}, True),  # There is no view yet.
        ((), {1}, False),
    ):
      self.parts.view = members.view(2, *alive)
      self.parts.hosted = frozenset(hosted)
      self.assertEqual(self.state.is_writer, is_writer)

  def test_what_is_settled_is_not_asked_again(self):
    self.start((0, 1), (2, 3))
    self.assertIsNone(self.state.find_change())
    self.assertEqual(self.take(), ["improve"])
    self.assertIsNone(self.state.find_change())
    self.assertEmpty(self.take())
    self.parts.view = members.view(2, 0, 1, 2, 3, 4)
    self.assertIsNone(self.state.find_change())
    self.assertEqual(self.take(), ["improve"])

  def test_state_moves_before_a_layout_counts(self):
    self.start((0, 1))
    self.state.carry_out(self.state.find_change())
    self.assertEqual(self.take()[:4], ["improve", "fetch 4 for 1", "moved 1", "install "])
    self.assertEqual(self.state.version, 1)
    self.assertEqual(self.state.layout.nodes, {0, 1, 2, 3})

  def test_who_lags_commits_once(self):
    self.start((0, 1), (2, 3))
    for steps, num_commits in ((3, 0), (4, 1), (4, 0)):
      commits = []
      self.state.catch_up(
          deaths_test.make_agreement(steps=steps, layout=self.state.layout),
          commit=lambda: commits.append(1),  # noqa: B023
      )
      self.assertLen(commits, num_commits)
      self.assertEqual((self.state.steps, self.state.version), (steps, 1))
    self.state.steps = -1  # It has just come.
    named = (slowness.Named(3, 1, "n1", "h", 2.0, 9.0),)
    self.state.catch_up(
        deaths_test.make_agreement(
            steps=5, known_version=1, layout=layout_lib.Layout(), named=named, num_skipped=2
        ),
        commit=self.fail,
    )
    self.assertEqual((self.state.steps, self.state.named), (5, named))
    self.assertEqual(self.state.num_skipped, 2)
    self.assertEqual(self.state.full_layout.spares, (0, 1, 2, 3))

  def test_too_few_nodes_wait_for_more(self):
    change = assignment.Decision("wait", layout_lib.Layout(), "2 more.")
    agreement = mock.Mock(change=change, victims=(types.Place(0, 1),))
    self.state.wait_for_nodes(agreement, explain=self.explain)
    self.assertEqual(
        self.take(),
        ["waiting: 2 more. True", "say layout ['restart']", "wait for 5", *("waiting", "adopt 7")],
    )
    self.parts.hosted = frozenset({1})
    self.state.wait_for_nodes(agreement, explain=self.explain)
    self.assertEqual(self.take()[:2], ["waiting: 2 more. False", "wait for 5"])
    agreement.change = dataclasses.replace(change, rung="stop")
    with self.assertRaisesRegex(base.RunFailedError, "stage 1;"):
      self.state.wait_for_nodes(agreement, explain=self.fail)
    (said,) = self.take()
    self.assertStartsWith(said, "say failed ")  # On all nodes.

  def test_who_waits_for_nodes_ends_when_asked(self):
    self.parts.view = members.view(7, 0, 1, 2, 3, stops=True)
    change = assignment.Decision("wait", layout_lib.Layout(), "2 more.")
    with self.assertRaisesRegex(base.EndedError, "waiting for nodes: 2 more.*newest checkpoint"):
      self.state.wait_for_nodes(mock.Mock(change=change), explain=self.explain)
    self.assertStartsWith(self.take()[-1], "say failed ")

  def test_who_missed_that_state_has_moved_takes_what_it_has_fetched(self):
    for fetched_for, known, version, is_installed, then in (
        (1, 1, 0, True, 1),
        (1, 2, 0, True, 1),  # Others have lost a node since.
        (1, 1, 1, False, 1),
        (1, 0, 0, False, -1),  # Else it would be taken for the next change.
        (-1, 1, 0, False, -1),
    ):
      self.start((0, 1), (2, 3))
      self.state.version, self.state.fetched_for = version, fetched_for
      agreement = deaths_test.make_agreement(
          steps=3, known_version=known, version=known, layout=self.state.layout
      )
      self.state.catch_up(agreement, commit=self.fail)
      self.assertEqual("install " in self.take(), is_installed)
      self.assertEqual(self.state.fetched_for, then)


_SIZE = 300


def make_state(number):
  return {"a": np.full(_SIZE, number, np.float32), "b": [np.array(number)]}


class FetchTest(absltest.TestCase):

  def make(self, number):
    """Returns the `RunState` of a process with node `number`, one of two."""
    exchange = transport_lib.Transport(
        number,
        run="r",
        endpoint=endpoints.listen_unix(),
        queued_bytes=1000,  # The state of a stage is larger, and so is an array.
    )
    self.addCleanup(exchange.close)
    specs = [mock.Mock(state=make_state(0))] * 3
    engine = mock.Mock(nodes={number: mock.Mock()}, specs=specs, exchange=exchange)
    return run_state_lib.RunState(engine, mock.Mock(hosted={number}), rules=None, writer=None)

  def test_what_was_sent_for_a_change_that_never_was_is_not_taken(self):
    source, taker = both = [self.make(number) for number in (0, 1)]
    exchanges = [state.engine.exchange for state in both]
    copy = failover.StageCopy(stage=2, source=0, destination=1)
    # After the first attempt the taker died or was interrupted: version 5 again.
    for attempt in (1, 2):
      for exchange in exchanges:
        exchange.set_addresses({n: one.address for n, one in enumerate(exchanges)})
        exchange.begin(attempt)
      source.engine.nodes[0].layers_of = {2: make_state(attempt)}.get
      source.fetch([copy], version=5)
    (state,) = taker.fetch([copy], version=5).values()
    np.testing.assert_array_equal(state["a"], [2] * _SIZE)
    self.assertEqual(state["b"][0], 2)

"""When members move to another session of JAX."""

from unittest import mock

from absl.testing import parameterized

from bamboo_jax import base
from bamboo_jax.base import json as json_lib
from bamboo_jax.cluster import eras as eras_lib
from bamboo_jax.cluster import settle
from bamboo_jax.cluster import views
from bamboo_jax.runtime.wire import coordination
from bamboo_jax.runtime.wire import transfer_log
from bamboo_jax.train.members import switch_session

_CHANNEL = settle.Channel("activation", (0, 1), (0,))


class SwitchSessionTest(parameterized.TestCase):

  def make(self, *, wanted, eras, last, alive=(1, 2, 3)):
    """Returns the switch of node 1 in a view that wants an era; its engine.

    Args:
      eras: Those of all nodes.
      last: The era of who was settled last; node 0 has begun a transfer there.
      alive: The eras whose service answers node 1.
    """
    self.connected = []
    number_of = lambda address: int(address.rpartition(":")[2])
    for name, instead in {
        "answers": lambda address: number_of(address) in alive,
        "connect": lambda a, **_: self.connected.append(number_of(a)),
        "disconnect": lambda: None,
        "devices_by_slot": mock.MagicMock(),
    }.items():
      patch = mock.patch.object(coordination, name, instead)
      self.enterContext(patch)
    self.client, engine = mock.Mock(number=1), mock.Mock(nodes={})
    self.client.adopted = views.View(8, (), "", era=wanted)
    begun = lambda n: (_CHANNEL,) if n == 0 else ()
    self.client.collect.return_value = {
        n: json_lib.to_plain(settle.Begun(since, begun(n), era))
        for n, era in enumerate(eras)
        for since in [(7, 3) if era == last else (0, 0)]
    }
    self.client.wait_era = lambda n: eras_lib.Era(n, f"host:{n}", 4)
    self.client.gather.side_effect = lambda _, mine: {0: True, 1: mine}
    switch = switch_session.SessionSwitch(
        self.client,
        transfer_log.TransferLog(),
        era=eras[1],
        host="",
        preconnects=False,
    )
    switch.attach(engine, mock.Mock())
    return switch, engine

  @parameterized.parameters([(1, 1)], [(2, 1)], [(1, 2)])
  def test_nobody_moves_before_all_have_committed(self, eras):
    """Who has not heard the votes would lose what it computed."""
    switch, engine = self.make(wanted=2, eras=eras, last=1)
    switch.settle()
    self.client.gather.side_effect = base.ViewChangedError("a node died")
    with self.assertRaises(base.ViewChangedError):
      switch.switch()  # Who is there already says so, too.
    engine.reset.assert_not_called()

  @parameterized.named_parameters(
      ("all_live", {1, 2, 3}, True, [2]),
      ("it_died_after_the_view", {1, 3}, True, [3]),
      ("another_does_not_reach_it", {1, 2, 3}, False, [3]),
  )
  def test_all_move_to_a_session_that_answers_all(self, alive, other, want):
    switch, _ = self.make(wanted=2, eras=(1, 1), last=1, alive=alive)
    switch.settle()
    self.client.gather.side_effect = lambda key, mine: {
        0: other or key != "era 2",
        1: mine,
    }
    self.assertTrue(switch.switch())
    self.assertEqual(self.connected, want)
    self.client.gather.reset_mock()
    self.assertFalse(switch.switch())  # Also before a view says so.
    self.client.gather.assert_not_called()

  @parameterized.named_parameters(
      ("late", (2, 1), {1, 2, 3}, [2], True),
      ("late_and_it_died", (2, 1), {1, 3}, [3], False),
      ("there_and_it_died", (2, 2, 1), {1, 3}, [3], False),
      ("there", (2, 2, 1), {1, 2, 3}, [], True),
      ("all_are", (2, 2), {1, 3}, [], True),
  )
  def test_settle(self, eras, alive, connected, answers):
    """Some have moved, and others have not when somebody dies."""
    switch, engine = self.make(wanted=2, eras=eras, last=2, alive=alive)
    self.assertEqual(switch.settle(), bool(connected))
    self.assertEqual(self.connected, connected)
    want = [mock.call(_CHANNEL)] * answers
    self.assertEqual(engine.links.answer.call_args_list, want)
    self.assertFalse(switch.switch())

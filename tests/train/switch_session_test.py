"""When members move to another session of JAX."""

from unittest import mock

from absl.testing import parameterized

from bamboo_jax import base
from bamboo_jax.base import json as json_lib
from bamboo_jax.cluster import settle
from bamboo_jax.cluster import views
from bamboo_jax.runtime.wire import coordination
from bamboo_jax.runtime.wire import transfer_log
from bamboo_jax.train.members import switch_session


class SwitchSessionTest(parameterized.TestCase):

  def make(self, *, wanted, eras, has_new=True):
    """Returns the switch of node 1 in a view that wants an era; its engine."""
    self.client, engine = mock.Mock(number=1), mock.Mock()
    self.client.adopted = views.View(8, (), "", era=wanted)
    self.client.collect.return_value = {
        n: json_lib.to_plain(settle.Begun(since, (), era))
        for n, era in enumerate(eras)
        for is_new in [has_new and era == wanted]
        for since in [settle.NEVER if is_new else (7, 3)]
    }
    switch = switch_session.SessionSwitch(
        self.client,
        transfer_log.TransferLog(),
        era=eras[1],
        host="",
        preconnects=False,
    )
    switch.attach(engine, mock.Mock())
    switch.settle()
    return switch, engine

  @parameterized.parameters([(1, 1)], [(2, 1)], [(1, 2)])
  def test_nobody_moves_before_all_have_committed(self, eras):
    """Who has not heard the votes would lose what it computed."""
    switch, engine = self.make(wanted=2, eras=eras)
    self.client.gather.side_effect = base.ViewChangedError("a node died")
    with self.assertRaises(base.ViewChangedError):
      switch.switch()  # Who is there already says so, too.
    engine.reset.assert_not_called()

  @parameterized.parameters(True, False)
  def test_nobody_follows_into_a_session_that_all_leave(self, answers):
    """Nodes that have just come may be in several; the last has died."""
    with (
        mock.patch.object(
            coordination, "answers", return_value=answers, autospec=True
        ),
        mock.patch.object(
            switch_session.SessionSwitch, "_move", autospec=True
        ) as move,
    ):
      switch, _ = self.make(wanted=3, eras=(2, 1))
      self.assertEqual(move.called, answers)
      self.assertEqual(switch.can_connect(3), answers)
      self.client.knows_era.return_value = False
      self.assertFalse(switch.can_connect(3))

  @parameterized.parameters(
      ([True, True], 9, 3, None, 1),
      ([True, False], 8, 2, None, 15),
      ([True, False], 9, 2, None, 15),
      ([True, False], 9, 3, 9, 1),
  )
  def test_all_reach_the_service_before_they_meet(
      self, reaches, newest, era, found, num_asked
  ):
    switch, _ = self.make(wanted=2, eras=(2, 2))
    view = views.View(newest, (), "", era=era)
    self.client.newest = self.client.find_view.return_value = view
    said = {n: [r, newest + n] for n, r in enumerate(reaches)}
    self.client.gather.return_value = said
    with mock.patch.object(coordination, "ask_service", autospec=True):
      self.assertEqual(switch.find_session(), found)
    keys = [call.args[0] for call in self.client.gather.mock_calls]
    self.assertEqual(keys, [f"reaches {n}" for n in range(num_asked)])

  @parameterized.parameters(([2, 2], False, 0), ([1, 2], False, 1))
  def test_only_who_meets_others_asks(self, eras, has_new, num_asked):
    switch, _ = self.make(wanted=2, eras=eras, has_new=has_new)
    self.client.newest = self.client.adopted
    self.client.gather.return_value = {0: [True, 8], 1: [True, 8]}
    with mock.patch.object(coordination, "ask_service", autospec=True):
      self.assertIsNone(switch.find_session())
    self.assertLen(self.client.gather.mock_calls, num_asked)

  def test_once_all_have_moved_nothing_is_said(self):
    switch, _ = self.make(wanted=2, eras=(1, 2))
    self.assertFalse(switch.switch())
    self.assertFalse(switch.switch())
    self.assertLen(self.client.gather.call_args_list, 1)

"""When members move to another session of JAX."""

from unittest import mock

from absl.testing import parameterized
import numpy as np

from bamboo_jax import base
from bamboo_jax.base import json as json_lib
from bamboo_jax.cluster import eras as eras_lib
from bamboo_jax.cluster import messages
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
      ([False, False], 9, 3, 9, 1),
      ([True, False], 9, 3, 9, 1),
      ([True, False], 9, 2, "alone", 16),
      ([True, False], 8, 2, "alone", 16),
  )
  def test_all_reach_the_service_before_they_meet(
      self, reaches, newest, era, found, num_asked
  ):
    switch, _ = self.make(wanted=2, eras=(2, 2))
    view = views.View(newest, (), "", era=era)
    self.client.newest = self.client.find_view.return_value = view
    said = {n: [r, newest + n] for n, r in enumerate(reaches)}
    self.client.gather.return_value = said
    self.enterContext(
        mock.patch.object(
            switch, "can_connect", return_value=reaches[1], autospec=True
        )
    )
    if found == "alone":
      with self.assertRaisesRegex(ConnectionError, "era 2 does not answer"):
        switch.find_session()
    else:
      self.assertEqual(switch.find_session(), found)
    keys = [call.args[0] for call in self.client.gather.mock_calls]
    self.assertEqual(keys, [f"reaches {n}" for n in range(num_asked)])

  @parameterized.parameters(True, False)
  def test_all_wait_for_a_service(self, reaches):
    """However long that takes; this one is not alone with it."""
    switch, _ = self.make(wanted=2, eras=(2, 2))
    self.client.newest = self.client.adopted
    said = [{0: [False, 8], 1: [reaches, 8]}] * 60 + [{0: [True, 8]}]
    self.client.gather.side_effect = said
    with mock.patch.object(switch, "can_connect", return_value=reaches):
      self.assertIsNone(switch.find_session())
    self.assertLen(self.client.wait_session.mock_calls, 60)
    said = [] if reaches else [mock.call(messages.ServiceSilent(2))] * 61
    self.assertEqual(self.client.send.mock_calls, said)

  def test_nobody_moves_where_another_waits(self):
    switch, engine = self.make(wanted=2, eras=(1, 1), has_new=False)
    later = views.View(9, (), "", era=3)
    self.client.newest = self.client.find_view.return_value = later
    self.client.gather.return_value = {0: [False, 9], 1: [True, 9]}
    with mock.patch.object(switch, "can_connect", return_value=True):
      self.assertEqual(switch.find_session(), 9)
    engine.reset.assert_not_called()

  def test_only_who_meets_others_asks(self):
    switch, _ = self.make(wanted=2, eras=(2, 2), has_new=False)
    self.assertIsNone(switch.find_session())
    self.client.gather.assert_not_called()

  def test_state_is_kept_until_a_session_is_entered(self):
    switch, engine = self.make(wanted=2, eras=(1, 1), has_new=False)
    state, node = np.arange(3), mock.Mock()
    engine.nodes = {1: mock.Mock(state={4: state})}
    nodes = iter([{}, {}, {1: node}])
    engine.reset.side_effect = lambda _: vars(engine).update(nodes=next(nodes))
    newer = views.View(9, (), "", era=3)
    self.client.newest = self.client.find_view.return_value = newer
    self.client.gather.side_effect = lambda key, mine: {0: (True, 9), 1: mine}
    self.client.wait_era.side_effect = lambda n: eras_lib.Era(n, "h:1", 9)
    replace = lambda *args, **given: self.enterContext(
        mock.patch.object(*args, **given)
    )
    replace(coordination, "answers", return_value=True)
    replace(coordination, "disconnect")
    replace(coordination, "ask_service")
    replace(switch_session, "devices_of")
    connect = replace(coordination, "connect", side_effect=[ConnectionError, 0])
    self.assertEqual(switch.find_session(), 9)
    self.client.send.assert_not_called()
    self.client.adopted = newer
    switch.settle()
    self.assertIsNone(switch.find_session())
    self.assertLen(connect.mock_calls, 2)
    self.client.send.assert_called_once_with(messages.InEra(3))
    (stage, held), _ = node.put_state.call_args
    self.assertEqual((stage, held.tolist()), (4, state.tolist()))
    self.assertFalse(switch.switch())
    keys = [call.args[0] for call in self.client.gather.mock_calls]
    asked = ["reaches 0", "entered 0"]
    self.assertEqual(keys, [*asked, *asked])

  def test_who_comes_tries_one_service_after_the_other(self):
    client = mock.Mock(number=1)
    first, later = (eras_lib.Era(n, f"h:{n}", 9) for n in (3, 5))
    full = eras_lib.Era(4, "h:4", 3, first=(0,), base=9)
    client.wait_era.return_value = first
    client.wait_later_era.side_effect = [full, later]
    tries = [ConnectionError, None]
    with mock.patch.object(coordination, "connect", side_effect=tries):
      era = switch_session.enter_newest(client, host="h")
    self.assertEqual(era, later)
    asked = [call.args for call in client.wait_later_era.mock_calls]
    self.assertEqual(asked, [(3,), (4,)])
    client.send.assert_called_once_with(messages.InEra(5))

  def test_once_all_have_moved_nothing_is_said(self):
    switch, _ = self.make(wanted=2, eras=(1, 2))
    self.assertFalse(switch.switch())
    self.assertFalse(switch.switch())
    self.assertLen(self.client.gather.call_args_list, 1)

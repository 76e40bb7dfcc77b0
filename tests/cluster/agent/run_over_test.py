"""Who ends a run of which nobody is left."""

from bamboo_jax.cluster import views
from bamboo_jax.cluster.agent import events as events_lib
from bamboo_jax.cluster.agent import run_over
from bamboo_jax.cluster.store import registry as registry_lib
from tests import members
from tests.cluster.agent import given


class RunOverTest(given.CoreCase):

  def end_run(self):
    """Begins to end view 1, whose members are gone; returns flow and view."""
    self.begin(me=3)
    self.state.roster.gone = {f"life {n}": "killed" for n in range(3)}
    self.state.roster.registered = set()
    flow = run_over._end_run(self.state)
    self.assertEqual(next(flow), given.made_after(1))
    request = flow.send([])
    self.assertEqual(request.method, registry_lib.Registry.read_views)
    over = views.View(2, (), "nobody is left of view 1")
    self.assertEqual(flow.send([]), given.claim(over))
    return flow, over

  def test_it_writes_a_view_without_members(self):
    flow, over = self.end_run()
    request = flow.send(over)
    self.assertEqual(request.method, registry_lib.Registry.write_view)
    self.assertIsInstance(flow.send(True), events_lib.Fence)  # A new life.

  def test_another_has_ended_it_and_begun_anew_meanwhile(self):
    flow, over = self.end_run()
    flow.send(over)  # The store is away for long.
    for view in (over, members.view(3, 9)):
      self.state.roster.adopt(view)
    with self.assertRaises(StopIteration):
      flow.send(False)
    self.assertEqual(self.state.roster.view, members.view(3, 9))

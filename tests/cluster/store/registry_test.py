"""What nodes keep in the store."""

from unittest import mock

from absl.testing import parameterized

from bamboo_jax.base import types
from bamboo_jax.cluster import views
from bamboo_jax.cluster.store import etcd as etcd_lib, registry as registry_lib
from tests.explorer import store as fake_store


class RegistryTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.store = fake_store.Server(lambda: 0.0).client()
    self.registry = registry_lib.Registry(self.store, "run")

  @parameterized.parameters(
      ({"version": 2, "config": {"seed": 0}}, "version is 1 there and 2 here"),
      ({"version": 1, "config": {"seed": 3}}, "config.seed is 0 there and 3 here"),
      ({"version": 1, "config": {}}, "config.seed is 0 there and absent here"),
  )
  def test_configs_that_differ(self, config, message):
    self.registry.check_config({"version": 1, "config": {"seed": 0}})
    self.registry.check_config({"config": {"seed": 0}, "version": 1})
    with self.assertRaisesRegex(ValueError, message):
      self.registry.check_config(config)

  def test_tickets(self):
    self.enterContext(mock.patch.object(types, "MAX_NODES", 3))
    got = [
        self.registry.take_ticket(zone, f"life {i}", name)
        for i, (zone, name) in enumerate([("a", "n10"), ("b", "n9"), ("c", "n1")])
    ]
    self.assertEqual(got, [0, 1, 2])
    by_name = [(2, "c"), (1, "b"), (0, "a")]
    self.assertEqual(list(self.registry.zones().items()), by_name)
    with self.assertRaisesRegex(ValueError, "has had 3 nodes"):
      self.registry.take_ticket("a", "life 3")
    self.assertEqual(self.registry.take_ticket("b", "life 1"), 1)

  def test_config_of_a_run(self):
    with self.assertRaisesRegex(ValueError, "no run 'run' at .*there is none"):
      self.registry.read_config()
    self.registry.check_config({"version": 1})
    self.assertEqual(self.registry.read_config(), {"version": 1})
    other = registry_lib.Registry(self.store, "other")
    with self.assertRaisesRegex(ValueError, "no run 'other' .*there is run."):
      other.read_config()

  def test_status(self):
    self.assertEqual(self.registry.read_status(), {})
    self.registry.write_status({"steps": 3})
    status = self.registry.read_status()
    self.assertGreater(status.pop("at_secs"), 0)
    self.assertEqual(status, {"steps": 3})

  def test_what_is_restored_stays_apart_from_another_run(self):
    view = views.View(4, (), "newest")
    self.registry.begin("new")  # Just before.
    with self.assertRaises(etcd_lib.LostStoreError):
      self.registry.restore("old", {}, view, 3)
    self.assertEqual((self.registry.stamp(), self.registry.read_view()), ("new", None))

  @parameterized.parameters(False, True)
  def test_a_run_is_restored(self, has_stamp):
    view = views.View(4, (), "newest")
    if has_stamp:  # The store has merely gone back.
      self.registry.begin("old")
    self.registry.restore("old", {}, view, 3)
    self.assertEqual(self.registry.stamp(), "old")
    self.assertEqual(self.registry.read_view(), view)
    self.assertEqual(self.registry.take_ticket("a", "life 3"), 3)

  def test_one_view_wins(self):
    self.assertIsNone(self.registry.read_view())
    first = views.View(1, (), "first")
    self.assertTrue(self.registry.write_view(first))
    self.assertFalse(self.registry.write_view(views.View(1, (), "late")))
    self.assertEqual(self.registry.read_view(), first)
    for number in range(2, 12):
      view = views.View(number, (), "next")
      self.assertTrue(self.registry.write_view(view))
    self.assertEqual(self.registry.read_view(), view)
    found = self.registry.read_views(8)
    self.assertEqual([v.number for v in found], [9, 10, 11])
    self.assertEqual(self.registry.read_views(11), [])

  def test_a_newcomer_takes_the_last_view_from_the_store_and_no_other(self):
    server = fake_store.Server(lambda: 0.0)
    sizes = []

    def carry(*given):
      status, answer = server.carry(*given)
      sizes.append(len(str(answer)))
      return status, answer

    store = etcd_lib.Etcd("store:1", transport=carry)
    registry = registry_lib.Registry(store, "run")
    self.assertEqual(registry.look(0).views, [])
    for number in range(1, 40):
      registry.write_view(views.View(number, (), "next"))
    found = {n: [v.number for v in registry.look(n).views] for n in (0, 38)}
    self.assertEqual(found, {0: [39], 38: [38, 39]})
    self.assertLess(sizes[-2], sizes[-1])

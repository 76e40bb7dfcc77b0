"""What an agent does about coordination services, with a store in memory."""

from absl.testing import absltest

from bamboo_jax.cluster import eras as eras_lib
from bamboo_jax.cluster.agent import events as events_lib
from bamboo_jax.cluster.agent import services as services_lib
from bamboo_jax.cluster.store import registry as registry_lib
from tests.simulation import store as fake_store


class ServicesTest(absltest.TestCase):

  def setUp(self):
    super().setUp()
    self.now = 0.0
    etcd = fake_store.Server(lambda: self.now).client()
    self.registry = registry_lib.Registry(etcd, "run")
    self.services = services_lib.Services(None)
    self.dead = set()  # Addresses.
    self.asked = lambda: None

  def run_flow(self, flow):
    """Answers whatever a flow asks for; returns what it returns."""
    answer = None
    try:
      while True:
        match flow.send(answer):
          case events_lib.Sleep(secs):
            self.now += secs
            answer = self.now
          case events_lib.Store(method, args):
            answer = method(self.registry, *args)
            if method is registry_lib.Registry.want_era:
              self.asked()
          case events_lib.OpenService(era):
            answer = 1000 + era.number
          case events_lib.Reach(address):
            answer = address not in self.dead
    except StopIteration as stop:
      return stop.value

  def publish(self, number, *, nodes=(), num_slots=3):
    era = eras_lib.begin_era(
        number, f"h:{number + 1}", num_slots=num_slots, nodes=nodes
    )
    self.assertTrue(self.registry.publish_era(era))

  def test_the_worker_is_told_of_all_eras_in_order(self):
    self.publish(0)
    self.run_flow(self.services.wait_slot(1))
    self.assertEqual(self.services.seen.address, "127.0.0.1:1000")
    for number in (1, 2):
      self.publish(number, nodes=[1])
    seen = self.run_flow(self.services.look())
    addresses = [era.address for era in seen]
    self.assertEqual(addresses, ["127.0.0.1:1001", "127.0.0.1:1002"])
    self.assertEqual(self.services.newest, 2)
    self.assertEqual(self.run_flow(self.services.look()), [])

  def test_asks_for_an_era_with_a_slot(self):
    self.publish(0, num_slots=3)
    self.asked = lambda: self.publish(1, nodes=[0, 2])
    self.run_flow(self.services.wait_slot(2))
    self.assertEqual(self.registry.wanted_era(), 1)
    self.assertEqual(self.services.newest, 1)

  def test_comes_too_late(self):
    is_late = lambda: self.services.is_late(1, self.registry.eras())
    self.publish(0)
    self.assertFalse(self.run_flow(is_late()))
    self.publish(1, nodes=[0, 4])
    self.assertTrue(self.run_flow(is_late()))
    self.assertFalse(self.run_flow(self.services.wait_slot(1)))
    self.assertTrue(self.run_flow(self.services.wait_slot(4)))

  def test_one_service_and_no_more(self):
    self.services = services_lib.Services(eras_lib.Era(0, "h:1", 3))
    with self.assertRaisesRegex(ValueError, "no slot for node 2, dead nodes"):
      self.run_flow(self.services.wait_slot(2))

  def test_does_not_wait_for_ever(self):
    self.publish(0)
    self.dead.add("h:1")
    with self.assertRaisesRegex(OSError, "service at h:1 is dead; start"):
      self.run_flow(self.services.wait_slot(1))
    self.assertAlmostEqual(self.now, 60.0, delta=0.2)

  def test_needs_another_once_the_service_is_dead(self):
    self.publish(0)
    self.run_flow(self.services.look())
    self.assertEqual(self.services.needed(0, [0]), 0)
    self.services.lose(0)
    self.assertIsNone(self.services.needed(0, [0]))
    self.publish(1, nodes=[0])
    self.run_flow(self.services.look())
    self.assertEqual(self.services.needed(0, [0]), 1)
    self.assertEqual(self.services.needed(1, [0]), 1)

  def test_who_has_lost_a_service_needs_that_all_move(self):
    self.publish(0)
    self.publish(1, nodes=[0])  # A member has asked for it.
    self.run_flow(self.services.look())
    self.assertEqual(self.services.needed(0, [0]), 1)
    self.services.lose(1)
    self.assertEqual(self.services.needed(0, [0]), 0)

  def test_another_era_is_missed(self):
    self.publish(0)
    self.run_flow(self.services.look())
    found = self.registry.eras()
    self.assertFalse(self.services.misses(found, 0))
    self.assertFalse(self.services.misses([], 0))  # Members give it back.
    # A store has gone back, and a new coordinator has not heard of this one.
    again = eras_lib.begin_era(0, "h:9", num_slots=3, nodes=[])
    self.assertTrue(self.services.misses([again], 0))
    self.assertTrue(self.services.misses(found, 2))  # It has no slot.
    self.assertIsNone(self.services.needed(0, [0, 2]))
    self.services.lose(0)
    self.assertTrue(self.services.misses(found, 0))

  def test_who_can_be_taken_in(self):
    self.publish(0, nodes=[0, 2])
    self.run_flow(self.services.look())
    takes = [node for node in range(5) if self.services.takes(node, 0)]
    self.assertEqual(takes, [0, 2, 3])
    self.assertFalse(self.services.takes(0, 1))  # There is none yet.
    self.services.use(0)
    self.assertEqual(self.services.least, 0)
    self.services.lose(0)
    self.assertFalse(self.services.takes(0, 0))
    self.assertEqual(self.services.least, 1)

  def test_nobody_moves_to_a_service_that_does_not_answer(self):
    for number in range(2):
      self.publish(number)
    self.run_flow(self.services.look())
    self.services.use(0)
    self.services.lose(0)
    self.dead.add("h:2")
    self.assertFalse(self.run_flow(self.services.answers(1)))
    self.assertIsNone(self.services.needed(0, [0]))
    self.assertFalse(self.services.lives(1))
    self.dead.clear()  # It was busy.
    self.run_flow(self.services.look())
    self.assertTrue(self.run_flow(self.services.answers(1)))
    self.assertEqual(self.services.needed(0, [0]), 1)

  def test_leaves_older_services(self):
    for number in range(3):
      self.publish(number)
    self.run_flow(self.services.look())
    self.assertEqual(self.services.use(1), [0])
    self.assertEqual(self.services.used, 1)
    self.assertEqual(self.services.use(2), [1])
    self.services.lose(0)  # Which is no news.
    self.assertEqual(self.services.needed(0, [0]), 2)


if __name__ == "__main__":
  absltest.main()

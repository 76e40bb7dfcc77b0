"""Who gets a slot in an era, and what a failing store leaves behind."""

from absl.testing import absltest
from absl.testing import parameterized

from bamboo_jax.cluster import views
from bamboo_jax.cluster.store import etcd as etcd_lib
from bamboo_jax.cluster.store import registry as registry_lib
from bamboo_jax.local_cluster import coordinator as coordinator_lib
from tests import members
from tests.simulation import store as fake_store


class Services:
  """Services that serve nobody."""

  def __init__(self):
    self.running = []
    self.alive = set()

  def find_address(self, number):
    return f"h:{1 + number}"

  def answers(self, era):
    return era.address in self.alive

  def start(self, era):
    self.running.append(era.number)

  def end(self, number):
    self.running.remove(number)


class CoordinatorTest(parameterized.TestCase):

  def setUp(self):
    super().setUp()
    self.server = fake_store.Server(lambda: 0.0)
    self.etcd = self.server.client()
    self.registry = registry_lib.Registry(self.etcd, "run")
    self.registry.begin("stamp")
    self.begin()

  def begin(self):
    self.services = Services()
    self.coordinator = coordinator_lib.Coordinator(
        self.server.client(), self.services, run="run", num_slots=8
    )

  def test_who_has_a_ticket_gets_a_slot(self):
    for i in range(3):
      self.registry.take_ticket(None, "a", f"life {i}")
    # The last to come is the first to register.
    self.registry.register(views.Member(2, "n2", "a", "life", "h", 1))
    self.coordinator.look()
    (era,) = self.registry.eras()
    self.assertEqual(era.numbers, tuple(range(7)))

  def test_a_service_that_the_store_does_not_know(self):
    etcd = self.coordinator._etcd
    publish, create = self.coordinator.look, etcd.create

    def fail(*args, **kwargs):
      raise OSError("no store")

    etcd.create = fail
    with self.assertRaises(OSError):
      publish()
    etcd.create = create
    publish()
    self.assertEqual(self.services.running, [0])
    self.assertLen(self.registry.eras(), 1)

  def test_the_answer_of_the_store_gets_lost(self):
    etcd = self.coordinator._etcd
    look, create = self.coordinator.look, etcd.create

    def lose_answer(*args, **kwargs):
      create(*args, **kwargs)
      raise OSError("no answer")

    look()
    self.registry.want_era(1)
    etcd.create = lose_answer
    with self.assertRaises(OSError):
      look()
    etcd.create = create
    look()
    self.assertEqual(self.services.running, [0, 1])
    self.assertLen(self.registry.eras(), 2)

  def test_a_store_that_has_gone_back(self):
    self.coordinator.look()
    go_back = self.server.save()
    self.registry.want_era(1)
    self.coordinator.look()
    eras = self.registry.eras()
    go_back()
    with self.assertRaises(etcd_lib.LostStoreError):
      self.coordinator.look()
    self.coordinator.look()
    self.etcd.forget()
    self.assertEqual(self.registry.eras(), eras)
    self.assertEqual(self.services.running, [0, 1])

  @parameterized.parameters(True, False)
  def test_another_coordinator(self, lives):
    self.coordinator.look()
    other = Services()
    coordinator_lib.Coordinator(
        self.server.client(), other, run="run", num_slots=8
    ).look()
    self.assertEqual(other.running, [1])
    if lives:
      self.services.alive.add("h:2")
      with self.assertRaisesRegex(ValueError, "another coordinator"):
        self.coordinator.look()
    else:  # Members gave its era back to a store that had lost it.
      self.coordinator.look()
      self.assertEqual(self.services.running, [0, 2])

  def test_no_two_eras_have_one_address(self):
    services = coordinator_lib.Services("h", 8476, identity=None)
    found = [services.find_address(number) for number in (0, 3)]
    self.assertEqual(found, ["h:8476", "h:8479"])

  def test_a_store_that_has_lost_its_data(self):
    self.coordinator.look()
    eras = self.registry.eras()
    self.server.forget()
    with self.assertRaises(etcd_lib.LostStoreError):
      self.coordinator.look()
    self.coordinator.look()
    self.etcd.forget()
    self.assertEqual(self.registry.eras(), [])  # Nor does it know of members.
    self.registry.begin("stamp")
    self.coordinator.look()
    self.assertEqual(self.registry.eras(), eras)
    self.assertEqual(self.services.running, [0])

  def test_a_machine_that_has_lost_store_and_coordinator(self):
    self.coordinator.look()
    (era,) = self.registry.eras()
    self.server.forget()
    self.begin()
    self.coordinator.look()  # Members know an era, which has died.
    self.etcd.forget()
    self.registry.restore("stamp", {}, members.view(1, 0), 1, era)
    self.coordinator.look()
    self.assertEqual(self.services.running, [1])
    self.assertEqual([e.number for e in self.registry.eras()], [0, 1])

  @parameterized.parameters(
      (("n0", "n1"), [1]),  # All have left.
      (("n1",), [0, 1]),  # n0's lease has lapsed, and it has not said more.
  )
  def test_nobody_loses_a_service_that_it_uses(self, said, running):
    self.coordinator.look()
    self.registry.write_view(members.view(1, 0))
    self.registry.want_era(1)
    self.coordinator.look()
    self.registry.register(members.member(1))  # It comes.
    for name in said:
      self.registry.use_era(name, 1)
    self.coordinator.look()
    self.assertEqual(self.services.running, running)


if __name__ == "__main__":
  absltest.main()

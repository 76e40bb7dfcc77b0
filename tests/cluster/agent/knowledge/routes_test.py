import collections
import random

from absl.testing import parameterized

from bamboo_jax.cluster import messages
from bamboo_jax.cluster import views
from bamboo_jax.cluster.agent import events as events_lib
from bamboo_jax.cluster.agent.knowledge import roster as roster_lib
from bamboo_jax.cluster.agent.knowledge import routes as routes_lib
from tests import members


class Net:
  """Agents whose connections stand or fail at once."""

  def __init__(self, numbers, width):
    self.now = 0.0
    self.heard = collections.Counter()  # By source, target and message.
    self.routes, self.due = {}, collections.deque()
    self.members = {m.incarnation: m for m in map(members.member, numbers)}
    for known, member in self.members.items():
      roster = roster_lib.Roster()
      roster.me, roster.known = member, dict(self.members)
      roster.adopt(views.View(1, tuple(self.members.values()), "begins"))
      self.routes[known] = routes_lib.Routes(roster, width)
    for known, routes in self.routes.items():
      others = self.members.keys() - {known}
      near = [o for o in others if routes.is_near(self.members[o])]
      for other in near + sorted(others - {*near}):
        self.dial(known, other)
    self.settle()

  def dial(self, known, other):
    routes = self.routes[known]
    self.do(known, routes.dial(self.members[other], self.now))

  def do(self, known, actions):
    self.due += [(known, action) for action in actions]

  def settle(self):
    """Carries out all actions; time passes for those who wait."""
    for _ in range(8):
      while self.due:
        known, action = self.due.popleft()
        if known in self.routes:
          self.carry_out(known, action)
      self.now += 1.0
      for known, routes in self.routes.items():
        self.do(known, routes.tick(self.now))

  def carry_out(self, known, action):
    routes = self.routes[known]
    if isinstance(action, events_lib.Send):
      for target in action.to:
        if target in routes.direct and target in self.routes:
          self.hear(known, target, action.message)
      return
    target = action.member.incarnation
    if target in self.routes:
      self.do(known, routes.reach(target))
    else:
      self.lose(known, *routes.fail(target, self.now, is_refused=True))

  def lose(self, known, actions, lost):
    self.do(known, actions)
    for target in lost:
      self.dial(known, target)

  def hear(self, source, target, message):
    routes = self.routes[target]
    match message:
      case messages.Wants(targets):
        self.do(target, routes.want(source, targets))
      case messages.Passes():
        self.lose(target, [], routes.take(source, message)[1])
      case messages.Stops():
        self.lose(target, *routes.stop(source, message, self.now))
      case messages.Via():
        self.do(target, routes.pass_on(source, message))
      case messages.From():
        self.heard[message.source, target, message.message] += 1
      case messages.Notice():
        self.heard[source, target, message] += 1

  def break_link(self, source, target):
    """A connection is closed; both ends live."""
    routes = self.routes[source]
    self.lose(source, *routes.close(target, self.now))
    self.dial(source, target)

  def kill(self, victims):
    for victim in victims:
      del self.routes[victim]
    for known, routes in self.routes.items():
      for victim in routes.direct.keys() & {*victims}:
        actions, lost = routes.close(victim, self.now)
        self.lose(known, actions, [victim, *lost])
    self.settle()

  def missing(self):
    """Returns which pairs do not hear each other exactly once."""
    self.heard.clear()
    said = messages.Notice("all")
    for known, routes in self.routes.items():
      self.do(known, routes.send(said, None))
    self.settle()
    live = [*self.routes]
    pairs = [(a, b) for a in live for b in live if a != b]
    return [p for p in pairs if self.heard[*p, said] != 1]


class WidthTest(parameterized.TestCase):

  @parameterized.parameters(
      (1, 64, 1), (64, 64, 1), (65, 64, 4), (1000, 64, 18), (8, 3, 2)
  )
  def test_cells_have_three_agents(self, num_nodes, mesh_nodes, width):
    self.assertEqual(routes_lib.find_width(num_nodes, mesh_nodes), width)


class RoutesTest(parameterized.TestCase):

  @parameterized.parameters((12, 2), (27, 3), (75, 5))
  def test_all_hear_all_over_few_connections(self, num_nodes, width):
    net = Net(range(num_nodes), width)
    self.assertEmpty(net.missing())
    for known, routes in net.routes.items():
      self.assertEqual(routes.reached, net.routes.keys() - {known})
      self.assertTrue(all(map(routes.reaches, routes.reached)))
    most = max(len(r.direct) for r in net.routes.values())
    self.assertEqual(most, 2 * num_nodes / width - num_nodes / width**2 - 1)
    self.assertLess(most, num_nodes - 1)

  @parameterized.parameters(*range(12))
  def test_whoever_is_left_hears_all_others(self, seed):
    rng = random.Random(seed)
    net = Net(sorted(rng.sample(range(60), 27)), 3)
    while len(net.routes) > 3:
      net.kill(rng.sample([*net.routes], rng.randint(1, 3)))
      self.assertEmpty(net.missing())

  @parameterized.parameters(*range(8))
  def test_a_closed_connection_cuts_nobody_off(self, seed):
    rng = random.Random(seed)
    net = Net(range(27), 3)
    for _ in range(10):
      source = rng.choice([*net.routes])
      net.break_link(source, rng.choice(sorted(net.routes[source].direct)))
      net.settle()
      self.assertEmpty(net.missing())
    most = max(len(r.direct) for r in net.routes.values())
    self.assertLess(most, 20)  # Others pass on as before.

  def test_who_does_not_answer_is_replaced(self):
    net = Net(range(12), 2)
    one = net.routes["life 0"]
    (dial,) = one.dial(net.members["life 3"], 10.0)
    self.assertIsInstance(dial.message, messages.Wants)
    first = dial.to
    self.assertEmpty(one.tick(11.0))
    (again,) = one.tick(12.0)
    self.assertNotEqual(again.to, first)
    (last,) = one.tick(14.0)
    self.assertEqual(last, events_lib.Dial(net.members["life 3"]))

  def test_what_a_dead_agent_passed_on_goes_another_way(self):
    net = Net(range(12), 2)
    one = net.routes["life 0"]
    sends = one.send(messages.Notice("it"), ["life 3"])
    self.assertIsInstance(sends[0].message, messages.Via)
    actions, lost = one.drop(*sends[0].to, net.now)
    self.assertIn("life 3", lost)
    net.lose("life 0", actions, lost)
    net.settle()
    others = one.send(messages.Notice("it"), ["life 3"])
    self.assertNotEqual(others[0].to, sends[0].to)

  def test_who_forgets_an_agent_passes_on_to_it_no_longer(self):
    net = Net(range(12), 2)
    one = net.routes["life 0"]
    (send,) = one.send(messages.Notice("it"), ["life 3"])
    (relay,) = send.to
    net.lose(relay, *net.routes[relay].drop("life 3", net.now))
    net.settle()
    (send,) = one.send(messages.Notice("it"), ["life 3"])
    self.assertNotEqual(send.to, (relay,))

  def test_another_cell_passes_on_if_one_is_empty(self):
    net = Net([0, 2, 3], 2)  # Nobody is in row 0 and column 1.
    (send,) = net.routes["life 0"].send(messages.Notice("it"), ["life 3"])
    self.assertEqual(send.to, ("life 2",))

  def test_who_passes_on_says_what_it_can(self):
    net = Net(range(12), 2)
    one = net.routes["life 1"]
    one.fail("life 7", net.now, is_refused=True)
    self.assertEqual(
        one.want("life 0", ["life 3", "life 7"]),
        [
            events_lib.Send(messages.Stops(("life 7",)), ("life 0",)),
            events_lib.Send(
                messages.Came((net.members["life 0"],)), ("life 3",)
            ),
            events_lib.Send(messages.Passes(("life 3",)), ("life 0",)),
        ],
    )

  def test_what_was_lost_before_it_connected_again_is_said_again(self):
    net = Net(range(12), 2)
    one = net.routes["life 0"]
    (send,) = one.send(messages.Notice("it"), ["life 3"])
    again = messages.Passes(("life 3",))
    self.assertEqual(one.take(*send.to, again), (["life 3"], []))
    all_of_it = messages.Passes(("life 3",), are_all=True)
    self.assertEmpty(one.take(*send.to, all_of_it)[0])

  def test_who_is_refused_is_tried_at_once(self):
    net = Net(range(12), 2)
    one, far = net.routes["life 0"], net.members["life 3"]
    (send,) = one.send(messages.Notice("it"), ["life 3"])
    stops = messages.Stops(("life 3",), are_refused=True)
    self.assertEqual(one.stop(*send.to, stops, net.now), ([], ["life 3"]))
    self.assertEqual(one.dial(far, net.now), [events_lib.Dial(far)])
    (asks,) = one.dial(far, net.now)
    self.assertIsInstance(asks.message, messages.Wants)

  def test_a_relay_that_has_forgotten_is_not_believed(self):
    net = Net(range(12), 2)
    one = net.routes["life 0"]
    (send,) = one.send(messages.Notice("it"), ["life 3"])
    reached, lost = one.take(*send.to, messages.Passes((), are_all=True))
    self.assertEqual((reached, "life 3" in lost), ([], True))
    self.assertEmpty(one.send(messages.Notice("it"), ["life 3"]))

  def test_silence_counts_between_those_who_are_connected(self):
    net = Net(range(12), 2)
    one, far = net.routes["life 0"], net.members["life 3"]
    self.assertFalse(one.is_heard(far))
    one.note("life 3", is_passed_on=False)
    self.assertTrue(one.is_heard(far))
    one.note("life 3", is_passed_on=True)
    self.assertFalse(one.is_heard(far))
    self.assertTrue(one.is_heard(net.members["life 1"]))

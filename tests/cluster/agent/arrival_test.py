"""The arrival of a node whose store answers only every other time."""

from bamboo_jax.cluster.agent import arrival, events as events_lib
from tests import members
from tests.cluster.agent import given

_ANSWERS = {"read_view": members.view(1, 0), "take_ticket": 3}


class ArrivalTest(given.CoreCase):

  def test_a_lost_answer_ends_no_arrival(self):
    self.begin()
    flow, asked = arrival.take_number(self.state), []
    with self.assertRaises(StopIteration) as end:
      request = next(flow)
      while True:
        self.assertIsInstance(request, events_lib.Store)
        asked.append(request.method.__name__)
        self.assertIsInstance(flow.throw(OSError("away.")), events_lib.Sleep)
        self.assertEqual(flow.send(0.1), request)
        request = flow.send(_ANSWERS[request.method.__name__])
    self.assertEqual(end.exception.value, 3)
    self.assertCountEqual(asked, _ANSWERS)

"""An agent's metrics, as Prometheus reads them."""

import socket
import threading
import types
import urllib.request

from absl.testing import absltest

from bamboo_jax.cluster.agent import exporter
from bamboo_jax.cluster.agent.knowledge import roster as roster_lib
from tests import members
from tests import strangers


def state(**status):
  """Returns the part of an agent's state that is read."""
  roster = roster_lib.AgentRoster()
  roster.me = members.member(0)
  roster.adopt(members.view(4, 0, 2, 5, leaving=(2,)))
  options = types.SimpleNamespace(run="mine", name="n0", zone="a")
  return types.SimpleNamespace(roster=roster, status=status, options=options)


class ExporterTest(absltest.TestCase):

  def test_text(self):
    known = [None]
    port = exporter.serve(0, host="127.0.0.1", state=lambda: known[-1])

    def read():
      with urllib.request.urlopen(f"http://127.0.0.1:{port}/") as answer:
        lines = answer.read().decode().splitlines()
      return [line for line in lines if not line.startswith("#")]

    self.assertEqual(read(), [])
    known.append(state(steps=7, metrics={"loss": 2.5, "reason": "text"}))
    labels = '{node="n0",run="mine",zone="a"}'
    self.assertEqual(
        read(),
        [
            f"bamboo_view{labels} 4.0",
            f"bamboo_members{labels} 3.0",
            f"bamboo_leaving{labels} 1.0",
            f"bamboo_is_member{labels} 1.0",
            f"bamboo_reported_step{labels} 7.0",
            f"bamboo_step_loss{labels} 2.5",
        ],
    )
    known.append(state())
    self.assertLen(read(), 4)

  def test_idle_callers(self):
    """They use up neither threads nor files, and lock nobody out."""
    port = exporter.serve(0, host="127.0.0.1", state=state)
    before = threading.active_count()
    idle = strangers.hold(port, 100)
    for caller in idle:
      self.addCleanup(caller.close)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/") as answer:
      self.assertIn("bamboo_view", answer.read().decode())
    for caller in idle[:80]:
      caller.settimeout(20)
      self.assertEqual(caller.recv(1), b"")
    self.assertLess(threading.active_count() - before, 20)

  def test_a_port_in_use(self):
    with socket.socket() as other:
      other.bind(("127.0.0.1", 0))
      other.listen()
      with self.assertRaises(OSError):
        exporter.serve(
            other.getsockname()[1], host="127.0.0.1", state=lambda: None
        )


if __name__ == "__main__":
  absltest.main()

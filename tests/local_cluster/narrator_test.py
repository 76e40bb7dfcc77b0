"""What an agent prints of a run: who is here, steps, deaths and the end."""

import io
import json
import types
from unittest import mock

from bamboo_jax import config
from bamboo_jax.cluster.agent import roster as roster_lib
from bamboo_jax.local_cluster import narrator as narrator_lib
from bamboo_jax.metrics import progress as progress_lib
from tests import folders, members
from tests.recovery import durations_test

_START = {"step": 0, "event": "start"}
_STEP = {"step": 1, "loss": 2.5, "step_ms": 20.0, "grad_norm": 1.0}
_DEATH = durations_test.RECOVERY | {"event": "recovery"}
_END = {"recoveries": [], "redundancy": None, "state_sha256": "5a"}


class NarratorTest(folders.FolderCase):

  def setUp(self):
    super().setUp()
    self.stream = io.StringIO()
    self.roster = roster_lib.Roster("life 0", config.ClusterSection(), 3)
    self.roster.me = members.member(0, zone="a")
    self.roster.known = {"life 0": self.roster.me}
    self.agent = types.SimpleNamespace(
        roster=self.roster,
        options=types.SimpleNamespace(name="n0", num_nodes=3),
        has_worker=False,
        is_done=False,
    )

  def write(self, *lines):
    with open(self.folder / "metrics.jsonl", "a") as file:
      file.writelines(json.dumps(line) + "\n" for line in lines)

  def make(self, place=""):
    self.progress = progress_lib.ProgressLine(num_steps=9, stream=self.stream)
    narrator = narrator_lib.Narrator(self.folder, self.progress, place=place)
    narrator.agent = self.agent
    return narrator

  def take(self):
    """Returns the lines since the last call."""
    said = self.stream.getvalue().splitlines()
    self.stream.truncate(0)
    self.stream.seek(0)
    return said

  def test_a_run_from_the_beginning(self):
    narrator = self.make()
    narrator.look()
    self.assertEqual(self.take(), [])  # The store has not been read.
    self.roster.registered = {"life 0"}
    narrator.look()
    self.assertEqual(self.take(), ["n0 joined (zone a); 1 of 3 nodes are here"])
    self.roster.known["life 2"] = members.member(2, zone="")
    self.roster.registered.add("life 2")
    self.write(_STEP)  # Of another run in this folder.
    narrator.look()
    narrator.look()
    self.assertEqual(self.take(), ["n2 joined; 2 of 3 nodes are here"])
    self.roster.adopt(members.view(1, 0, 1, 2, reason="the first nodes"))
    self.write(_START, _STEP)
    narrator.look()
    self.assertEqual(
        self.take(), ["view 1, 3 nodes: the first nodes", "step=1 loss=2.5000 step_ms=20.0"]
    )
    self.roster.adopt(members.view(2, 0, 2, reason="n1 is silent"))
    self.write(_DEATH)
    narrator.look()
    view, death = self.take()
    self.assertEqual(view, "view 2, 2 nodes: n1 is silent")
    self.assertStartsWith(death, "step 3: n1 (stage 0/1) died; its shadow n2 took over (")

  def test_what_a_node_waits_for(self):
    narrator = self.make()
    said = self.enterContext(mock.patch.object(self.progress, "explain"))
    narrator.look()
    narrator.look()
    self.roster.registered = {"life 0"}
    narrator.look()
    self.agent.has_worker = True
    narrator.look()
    self.roster.adopt(members.view(1, 0, 1, reason="the first nodes"))
    narrator.look()
    narrator.look()
    worker = "the worker of n0 starts, compiles and meets the others"
    self.assertEqual(
        [call.args[0] for call in said.call_args_list],
        [
            "waiting for the records of the run, and for 3 nodes in them",
            "waiting for the other nodes",
            worker,
            "the first step begins",
        ],
    )

  def test_a_run_that_goes_on(self):
    """What others have seen before is not shown; a repeated step is."""
    self.write(_START, _STEP, _STEP | {"step": 2})
    narrator = self.make()
    self.roster.adopt(members.view(1, 0, reason="the first node"))
    narrator.look()
    self.assertEqual(self.take(), ["view 1, 1 node: the first node"])
    self.write(_START | {"step": 1}, _STEP | {"step": 2})
    narrator.look()
    self.assertEqual(self.take(), ["resumed_from_step=1", "step=2 loss=2.5000 step_ms=20.0"])

  def test_the_end(self):
    """With a bucket the summary here may be of the part of the run before."""
    summary = self.folder / "summary.json"
    pull = lambda: summary.write_text(json.dumps(_END))
    fake = self.enterContext(mock.patch.object(narrator_lib.mirror, "Mirror"))
    for place, is_done, fake.return_value.pull.side_effect, state in (
        ("", False, pull, None),
        ("", True, None, "former"),
        ("gs://b/run", True, pull, "5a"),
        ("gs://b/run", True, OSError("away"), None),
    ):
      summary.write_text(json.dumps(_END | {"state_sha256": "former"}))
      narrator = self.make(place)
      self.agent.is_done = is_done
      narrator.follow(self.agent)
      narrator.close()
      want = [f"state_sha256={state}"] if state else []
      if state == "former":  # A recovery of then would be told as one of now.
        want.insert(0, "nothing to do: all steps are done")
      self.assertEqual([line for line in self.take() if "joined" not in line], want)

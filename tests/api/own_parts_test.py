"""All parts of the user in one run: the file of docs/guides/own_training.md."""

import collections
import re

from absl.testing import parameterized
import numpy as np

import bamboo_jax
from bamboo_jax import config as config_lib
from bamboo_jax.base import functions
from bamboo_jax.metrics import loggers
from bamboo_jax.training.setup import accept, optimizers
from tests import folders, tiny

_PAGE = folders.ROOT / "docs/guides/own_training.md"
_DEATH = ["3,0/0,1,kill"]  # Of the node that writes the log.


class OwnPartsTest(folders.FolderCase):

  def setUp(self):
    super().setUp()
    blocks = re.findall(r"^```python\n(.*?)^```", _PAGE.read_text(), re.M | re.S)
    (code,) = (block for block in blocks if "make_policy" in block)
    path = self.folder / "parts.py"
    path.write_text(code)
    find = functions.find_function(f"{path}:get_config", what="config")
    self.config = find()
    self.config.checkpoint.every_steps = 0
    self.config.metrics.plots = False

  def read_log(self, name):
    """Returns the steps that the logger got, and how often each event."""
    lines = (self.folder / name / "own.log").read_text().splitlines()
    words = [line.split() for line in lines]
    steps = [(int(w[1]), float(w[2])) for w in words if w[0] == "step"]
    return steps, collections.Counter(w[0] for w in words)

  def test_in_one_process(self):
    whole = bamboo_jax.train(self.config, workdir=self.folder / "whole")
    killed = bamboo_jax.train(self.config, workdir=self.folder / "killed", faults=_DEATH)
    self.assertEqual(whole.state_sha256, killed.state_sha256)
    self.assertEqual(killed.recoveries[0]["rung"], "reroute")
    for name in ("whole", "killed"):
      steps, events = self.read_log(name)
      self.assertEqual(steps, [*whole.losses.items()])
      self.assertEqual(events["recovery"], int(name == "killed"))
      self.assertEqual(events["start"], 1)
    rates = [l["learning_rate"] for l in whole.lines if "event" not in l]
    peak = self.config.optimizer.learning_rate
    wanted = peak * np.array([0, 1 / 3, 2 / 3, 1, 1, 1])
    np.testing.assert_allclose(rates, wanted, rtol=1e-6)


class BadPartsTest(folders.FolderCase):
  """What is wrong with a part is said in one line that names it."""

  def write(self, code):
    path = self.folder / "bad.py"
    path.write_text(code)
    return f"{path}:make"

  @parameterized.named_parameters(
      ("no_rate", "def make(): pass", "option of optimizer '.*'learning_rate'"),
      ("nothing", "def make(learning_rate): pass", "must be an optax.Gradient"),
  )
  def test_optimizer(self, code, message):
    with self.assertRaisesRegex(ValueError, message):
      section = config_lib.OptimizerSection(name=self.write(code), options={"weight_decay": 0.1})
      optimizers.make_optimizer(section, 0.1)

  @parameterized.named_parameters(
      ("nothing", "def make(): pass", "cannot be made"),
      ("branch", "def make(): return lambda n: 1 if n else 2", "be made"),
      ("array", "def make(): return lambda n: [1.0, 2.0]", "must return a number, got an array"),
  )
  def test_schedule(self, code, message):
    given = dict(schedule=self.write(code), learning_rate=1.0, schedule_options={})
    with self.assertRaisesRegex(ValueError, message):
      optimizers.make_schedule(config_lib.OptimizerSection(**given), num_steps=3)

  def test_schedule_gets_peak_and_length(self):
    """And leaves out what only schedules of optax have."""
    name = self.write(
        "import optax\n"
        "def make(learning_rate, decay_steps):\n"
        "  return optax.linear_schedule(learning_rate, 0.0, decay_steps)\n"
    )
    options = {"warmup_steps": 10, "decay_steps": None}
    section = config_lib.OptimizerSection(
        schedule=name, learning_rate=2.0, schedule_options=options
    )
    made = optimizers.make_schedule(section, num_steps=4)
    self.assertEqual([made.rate_at(n) for n in (0, 1, 4)], [2.0, 1.5, 0.0])
    self.assertEqual(dict(made.unused), {"warmup_steps": 10})

  @parameterized.named_parameters(
      ("text", "def make(): return 'bamboo'", "must return a dict of options"),
      (
          "layout",
          "def make(): return {'study.layout': 'liveput'}",
          "study.layout='liveput', which only sim",
      ),
      ("key", "def make(): return {'recovery.dorp': True}", "'dorp'; did you mean 'drop'"),
  )
  def test_policy(self, code, message):
    config = tiny.make_config(recovery__policy=self.write(code))
    with self.assertRaisesRegex(ValueError, message):
      accept.accept(config)

  @parameterized.named_parameters(
      ("nothing", "def make(*given): pass", "NoneType lacks log, event, close"),
      ("no_file", None, "There is no logger"),
  )
  def test_logger(self, code, message):
    name = self.write(code) if code else f"{self.folder}/none.py:make"
    with self.assertRaisesRegex(ValueError, message):
      loggers.make_logger(name, {}, self.folder)

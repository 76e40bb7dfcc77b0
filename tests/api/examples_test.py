"""Examples train to the same bits, with deaths and without; 10 s each."""

from absl.testing import parameterized
import jax
import numpy as np

import bamboo_jax
from bamboo_jax.base import functions
from bamboo_jax.metrics import jsonl
from tests import folders, samples

_FOLDER = folders.ROOT / "examples"
_LOSS_MODEL = ["1,0/0,1,kill", "2,2/0,reduce,kill"]
_PIPELINE = ["1,0/0,3,kill", "2,1/1,reduce,kill"]
_METRICS = ("accuracy",)  # Own ones, of some of them.
_MAX_LINES = 60


def get_config(name):
  """Returns the config of an example, for a run of seconds."""
  config = functions.find_function(f"{_FOLDER}/{name}.py:get_config", what="x")()
  config.num_steps = 3
  config.checkpoint.every_steps = config.evaluate.every_steps = 0
  config.pipeline.num_microbatches = 2
  config.metrics.plots = False
  return config


class ExamplesTest(folders.FolderCase):

  def compare(self, config, faults):
    """Trains with deaths and without; returns the parameters."""
    killed = bamboo_jax.train(config, workdir=self.folder / "killed", faults=faults)
    whole = bamboo_jax.train(config, workdir=self.folder / "whole")
    self.assertLen(killed.recoveries, len(faults))
    self.assertEmpty(whole.recoveries)
    for name in ("loss", *_METRICS):
      found = [jsonl.column(r.lines, name) for r in (killed, whole)]
      self.assertEqual(*found, msg=name)
    self.assertEqual(killed.state_sha256, whole.state_sha256)
    params = [bamboo_jax.load(r.workdir) for r in (killed, whole)]
    jax.tree.map(np.testing.assert_array_equal, *params)
    return params[0]

  @parameterized.parameters(*samples.draw([("plain",), ("nnx",)], 1))
  def test_copies(self, name):
    params = self.compare(get_config(name), _LOSS_MODEL)
    init = functions.find_function(f"{_FOLDER}/{name}.py:init", what="init")
    first = jax.eval_shape(init, jax.random.key(0))
    self.assertEqual(jax.tree.structure(params), jax.tree.structure(first))

  def test_layers(self):
    config = get_config("layers")
    params = self.compare(config, _PIPELINE)
    names = ["embed", "block_0", "block_1", "block_2", "head"]
    self.assertEqual([*params], names)

  def test_each_fits_on_a_page(self):
    examples = sorted(_FOLDER.glob("*.py"))
    names = [path.stem for path in examples]
    self.assertEqual(names, ["layers", "nnx", "plain"])
    for path in examples:
      self.assertLess(len(path.read_text().splitlines()), _MAX_LINES, msg=path)

"""The model of docs/guides trains, through deaths, to the same bits."""

import ast
import re
import sys
from unittest import mock

import jax

from bamboo_jax.cli import config_flag
from bamboo_jax.exchange import weights
from bamboo_jax.faults import faults as faults_lib
from bamboo_jax.reproductions.paper_models import gnmt
from bamboo_jax.verify import cases, trials as trials_lib
from tests import folders

_GUIDES = folders.ROOT / "docs" / "guides"


def _read_code(page, word):
  """Returns the block of a page that has a word in it."""
  blocks = re.findall(r"```python\n(.*?)```", (_GUIDES / page).read_text(), re.DOTALL)
  (code,) = (block for block in blocks if word in block)
  return code


def setUpModule():
  jax.devices()  # Now there are 8, however few a run asks for.


class ModelsPageTest(folders.FolderCase):

  def test_code_trains(self):
    folder = str(self.folder)
    path = self.folder / "gru.py"
    path.write_text(_read_code("own_training.md", "make_gru"))
    sys.path.insert(0, folder)
    self.addCleanup(sys.path.remove, folder)
    self.addCleanup(sys.modules.pop, "gru", None)
    config = config_flag.load(str(path))
    self.assertIn(config.model.name.split(":")[0], path.name)
    config.data.name = "synthetic"
    config.data.options.vocab_size = 256
    config.model.options.sequence_length = 4
    config.checkpoint.every_steps = config.evaluate.every_steps = config.redundancy.spares = 0
    config.pipeline.update(num_pipelines=1, num_stages=2, num_microbatches=2, microbatch_size=2)
    trials = trials_lib.Trials(config)
    faults = faults_lib.parse_faults("1,0/1,2,kill", source="test")
    outcome = trials.run(cases.Case(faults))
    self.assertEqual(outcome.rungs, ("shadow",))
    self.assertLess(abs(outcome.losses[0] - 5.5), 1.0)

  def test_code_translates(self):
    model = gnmt.make_gnmt(variant="tiny", sequence_length=32)
    read = lambda name: model.init_layer(
        model.layer_names.index(name), seed=0, batch_shapes=model.batch_shapes(1)
    )
    out = self.enterContext(folders.printed())
    with mock.patch.object(weights, "open_weights", return_value=read) as opens:
      exec(_read_code("models.md", "translate"), {})
    self.assertEqual(opens.call_args.args[1].fingerprint, model.fingerprint)
    self.assertEqual(len(ast.literal_eval(out.getvalue())), 32)

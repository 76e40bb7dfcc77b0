"""The code of docs/reference/api.md and of the notebook, in small."""

import os
import re

import pytest

from tests import folders, late, samples
from tests.launch import commands

_ROOT = folders.ROOT

nbclient = late.Library("nbclient")
nbformat = late.Library("nbformat")

_NAME = 'get_config("quickstart")'
_SMALL = """
import bamboo_jax

def get_config():
  config = bamboo_jax.get_config("quickstart")
  config.model.options.update(num_blocks=1, width=16, sequence_length=16)
  config.pipeline.update(num_stages=3, num_microbatches=2)
  config.redundancy.spares = config.evaluate.every_steps = 0
  config.metrics.plots = False
  return config
"""


def _shrink(code):
  """Returns the code with a small model and half of the steps."""
  code = code.replace(_NAME, 'get_config("small.py")')
  return re.sub(r"\b20\b", "10", code)


@samples.only_all  # The tests beside this one make the same calls.
class PagesTest(folders.FolderCase):

  def setUp(self):
    super().setUp()
    (self.folder / "small.py").write_text(_SMALL)
    path = os.environ.get("PYTHONPATH", "")
    self.enterContext(pytest.MonkeyPatch.context()).setenv(
        "PYTHONPATH", f"{_ROOT}{os.pathsep}{path}"
    )

  def test_page(self):
    text = (_ROOT / "docs" / "reference" / "api.md").read_text()
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.M | re.S)
    self.assertLen(blocks, 6)
    self.assertLen(blocks[0].strip().splitlines(), 10)
    code = "".join(blocks)
    self.assertIn(_NAME, code)
    done = commands.run("-c", _shrink(code), cwd=self.folder)
    self.assertEqual(done.returncode, 0, msg=done.stderr)
    self.assertNotIn("compare hashes only", done.stderr)
    self.assertIn("predicted step:", done.stdout)
    self.assertIn("node0 (256, 16)\n", done.stdout)
    self.assertIn("6 ['0/1'] shadow\n10 ['1/2'] shadow\n", done.stdout)

  def test_notebook(self):
    path = _ROOT / "examples" / "first_steps.ipynb"
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    cells = [c for c in notebook.cells if c.cell_type == "code"]
    for cell in cells:
      self.assertEmpty(cell.outputs, msg="It ships without outputs.")
      cell.source = _shrink(cell.source)
    self.assertIn('get_config("small.py")', cells[0].source)
    client = nbclient.NotebookClient(
        notebook, timeout=600, resources={"metadata": {"path": str(self.folder)}}
    )
    client.execute()
    said = "".join(
        output.text for cell in cells for output in cell.outputs if output.output_type == "stream"
    )
    self.assertIn("step 6: ['0/1'] died; shadow: every lost stage", said)
    self.assertRegex(said, r"identical: [0-9a-f]{64}\n")
    self.assertIn("image/png", cells[-1].outputs[-1].data)

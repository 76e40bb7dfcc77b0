import os
import pathlib

from absl.testing import parameterized

from bamboo_jax.base import packaged
from tests import folders, tables

_ROOT = folders.ROOT
_CONFIGS = _ROOT / "configs"
# Names of configs, and the error.
_MISTAKES = """
:xl
  There is no config file ''
yours.py
  There is no config file 'yours.py'.$
/nowhere
  There is no config file '/nowhere'.$
configs/gpt2.py:xl
  packaged one is --config=gpt2:xl$
llama.py
  packaged one is --config=llama$
quickstrt
  Unknown config 'quickstrt'; did you mean 'quickstart'
compare
  did you mean 'sim/compare'
zoo
  Unknown config 'zoo'
__init__
  Unknown config '__init__'
configs
  Unknown config 'configs'
"""


class PackagedTest(folders.FolderCase):

  def setUp(self):
    super().setUp()
    self.addCleanup(os.chdir, os.getcwd())
    os.chdir(self.folder)
    for name in ("mine.py", "quickstart", "no_suffix", "own.csv", "parcae_p3.csv"):
      (self.folder / name).touch()

  @parameterized.parameters(
      ("quickstart", f"{_CONFIGS}/quickstart.py"),
      ("gpt2:xl", f"{_CONFIGS}/gpt2.py:xl"),
      ("sim/compare:quick", f"{_CONFIGS}/sim/compare.py:quick"),
      ("mine.py", "mine.py"),
      ("./mine.py:a:b", "./mine.py:a:b"),
      ("./quickstart", "./quickstart"),
      ("no_suffix", "no_suffix"),
  )
  def test_config(self, name, want):
    self.assertEqual(packaged.find_config(name), want)

  @parameterized.parameters(*tables.read(_MISTAKES), ("", "There is no config file ''"))
  def test_no_config(self, name, message):
    with self.assertRaisesRegex(ValueError, message):
      packaged.find_config(name)

  def test_pages(self):
    text = "`docs/guides/cost.md`, docs/measurements/; my/docs/a.md"
    self.assertEqual(packaged.locate_pages(text), text.replace("docs", f"{_ROOT}/docs", 2))
    os.chdir(_ROOT)
    self.assertEqual(packaged.locate_pages(text), text)

  @parameterized.parameters(
      ("own.csv", "own.csv"),
      ("parcae_p3.csv", "parcae_p3.csv"),
      ("quickstart_faults.csv", _CONFIGS / "quickstart_faults.csv"),
      ("configs/quickstart_faults.csv", _CONFIGS / "quickstart_faults.csv"),
      ("third_party/published/parcae_p3.csv", _ROOT / "third_party/published/parcae_p3.csv"),
      ("configs/parcae_p3.csv", "configs/parcae_p3.csv"),
      ("../quickstart_faults.csv", "../quickstart_faults.csv"),
      ("default.py", "default.py"),
      ("absent.csv", "absent.csv"),
  )
  def test_file(self, path, want):
    self.assertEqual(packaged.find_file(path), pathlib.Path(want))

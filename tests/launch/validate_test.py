"""What a user can get wrong about a prediction beside its outcome."""

import pathlib
import tempfile

from absl.testing import parameterized

from bamboo_jax.local_cluster import trial
from configs import validate as validate_config
from tests.launch import commands


class ErrorsTest(parameterized.TestCase):

  # Each starts Python, two seconds; without the checks it measures for minutes.
  @parameterized.named_parameters(
      ("layers", "--layers=nowhere.json", "nowhere.json: No such file"),
      ("layers_of_what", "--layers=README.md", "README.md"),
      ("cluster", "--cluster=nowhere.json", "nowhere.json: No such file"),
      ("price", "--config.cost.instance=p3.large", "instance in .* 'p3.large'"),
      ("trace", "--trace=README.md", "README.md, line 3: not a trace"),
      ("scale", "--time_scale=0", "time_scale must be above 0, got 0"),
  )
  def test_one_line_before_anything_is_measured(self, argument, message):
    self.refuse("configs/validate.py:1x2", [argument], message)

  def test_no_price(self):
    self.refuse("tests/tiny.py", [], "--config.cost.instance=NAME")

  def refuse(self, config, arguments, message):
    with tempfile.TemporaryDirectory() as folder:
      run = commands.fork(
          *("-m", "launch.validate", f"--config={config}"),
          *("--trace=configs/validate_1x2.csv", f"--workdir={folder}/run"),
          *arguments,
      )
      self.assertFalse(pathlib.Path(folder, "run").exists())
    self.assertEqual(run.returncode, 2, msg=run.stderr)
    self.assertRegex(run.stderr, f"^error: .*{message}.*\n$")

  def test_what_could_not_be_measured(self):
    with self.assertRaisesRegex(ValueError, "launch.profile .*--nonsense .*ended with status 2"):
      trial.profile(pathlib.Path("layers.json"), ["--nonsense"])


class SizeTest(parameterized.TestCase):

  @parameterized.parameters("1y2", "0x3", "2x", "axb")
  def test_refuses(self, size):
    with self.assertRaisesRegex(ValueError, f"such as 2x4, got '{size}'"):
      validate_config.get_config(size)

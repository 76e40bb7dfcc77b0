"""The wheel in an environment of its own: commands work from any folder."""

import os
import pathlib
import re
import shutil
import subprocess
import sys
import sysconfig
import tempfile
import venv

from absl.testing import parameterized

import bamboo_jax
from bamboo_jax.launch import __main__
from tests import samples
from tests.launch import commands

_DEADLINE_SECS = 300
_WHEEL = (
    "bamboo_jax",
    "benchmarks",
    "configs",
    "launch",
    "reproductions",
    "third_party/published",
    "docs",
)
_FILES = ("LICENSE", "README.md", "pyproject.toml", "setup.cfg", "setup.py")
# Two nodes and a model that compiles in seconds.
_SMALL = (
    "--config=quickstart",
    "--config.num_steps=2",
    "--config.pipeline.num_pipelines=1",
    "--config.pipeline.num_stages=2",
    "--config.model.options.num_blocks=1",
    "--config.redundancy.spares=0",
    "--config.model.options.width=16",
    "--config.pipeline.num_microbatches=2",
    "--config.redundancy.mode=none",
    "--config.data.name=synthetic",
    "--config.evaluate.every_steps=0",
    "--config.checkpoint.every_steps=0",
    "--config.metrics.plots=False",
)
_IMAGES = (
    "--config.data.name=bamboo_jax.reproductions.paper_models.image_folder:make_image_folder",
    "--config.data.options={'path': 'images', 'image_size': 8}",
)
_OWN = """
from bamboo_jax.configs import paced

def get_config(argument):
  return paced.get_config(f"3x{argument}")
"""
# A copy of a process without JAX for each command, as imports take the time.
_HELP = """
import os, runpy, sys
from bamboo_jax.launch import cli

for name in sys.argv[1:]:
  sys.stdout.flush()
  if not os.fork():
    sys.argv[1:] = ["--help"]
    try:
      module = f"bamboo_jax.launch.{name}"
      runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as end:
      heavy = {"jax", "matplotlib", "PIL", "tensorboardX", "wandb"} & sys.modules.keys()
      print("end:", name, end.code or 0, *heavy, flush=True)
    os._exit(0)
  os.wait()
"""


def _install(folder):
  """Returns the scripts of an environment that has the wheel.

  Other packages are those of this Python, whose editable installation of the
  project it does not see: the .pth file of that is not read.
  """
  ignore = shutil.ignore_patterns("__pycache__")
  for name in _WHEEL:
    path = commands.ROOT / name
    shutil.copytree(path, folder / "source" / name, ignore=ignore)
  for name in _FILES:
    shutil.copy(commands.ROOT / name, folder / "source")
  pip = (sys.executable, "-m", "pip", "--quiet")
  offline = ("--no-index", "--no-deps", "--no-cache-dir")
  build = ("wheel", *offline, "--no-build-isolation", f"--wheel-dir={folder}")
  subprocess.run([*pip, *build, folder / "source"], check=True)
  shutil.rmtree(folder / "source")
  venv.create(folder / "env", with_pip=False)
  python = folder / "env/bin/python"
  (packages,) = (folder / "env").glob("lib/python*/site-packages")
  (packages / "others.pth").write_text(sysconfig.get_path("purelib"))
  (wheel,) = folder.glob("*.whl")
  install = (f"--python={python}", "install", *offline, wheel)
  subprocess.run([*pip, *install], check=True)
  return python.parent


_SIMULATIONS = (
    ("--config=sim/parcae:gpt-6.7b", "--trace=parcae_p3.csv", "--config.metrics.plots=False"),
    ("--policies=oobleck,varuna", "--trace=ec2", "--config.metrics.plots=False"),
    ("--table=oobleck",),
)
_COMMANDS = [*__main__.read_summaries()]


class InstalledTest(parameterized.TestCase):

  @classmethod
  def setUpClass(cls):
    super().setUpClass()
    folder = cls.enterClassContext(tempfile.TemporaryDirectory())
    cls.scripts = _install(pathlib.Path(folder))

  def setUp(self):
    super().setUp()
    folder = tempfile.TemporaryDirectory(ignore_cleanup_errors=True)
    self.folder = pathlib.Path(self.enterContext(folder))

  def run_script(self, name, *arguments, status=0):
    """Runs a script in an empty folder; returns what it printed."""
    environ = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
    path = os.pathsep.join([os.environ["PATH"], sysconfig.get_path("scripts")])
    done = subprocess.run(
        [self.scripts / name, *arguments],
        cwd=self.folder,
        env={**environ, "PATH": path, "JAX_PLATFORMS": "cpu"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=_DEADLINE_SECS,
    )
    self.assertEqual(done.returncode, status, msg=done.stdout)
    return done.stdout

  def test_names_and_version(self):
    """No general name is taken."""
    version = bamboo_jax.__version__
    self.assertEqual(self.run_script("bamboo", "--version"), f"bamboo_jax {version}\n")
    code = (
        "import importlib.util as u, importlib.metadata as m, bamboo_jax, pathlib\n"
        "print([n for n in ('configs', 'launch', 'tests') if u.find_spec(n)])\n"
        "print((pathlib.Path(bamboo_jax.__file__).parent/'py.typed').exists())\n"
        "print(m.version('bamboo_jax'))"
    )
    self.assertEqual(self.run_script("python", "-c", code), f"[]\nTrue\n{version}\n")

  def test_help_lists_every_command_and_config(self):
    said = self.run_script("bamboo", "--help")
    self.assertEqual(said, self.run_script("bamboo"))
    self.assertIn("  train        Trains a model; every node is", said)
    self.assertRegex(said, "(?s) quickstart,.* sim/compare,")
    for absent in ("worker", "_flags", "cli", "zoo"):
      self.assertNotIn(f"  {absent} ", said)

  def test_help_does_not_import_jax(self):
    said = self.run_script("python", "-c", _HELP, *_COMMANDS)
    ends = re.findall("^end: (.*)$", said, re.MULTILINE)
    self.assertEqual(ends, [f"{name} 0" for name in _COMMANDS])
    self.assertEqual(said.count("\nflags:\n"), len(_COMMANDS))
    said += self.run_script("bamboo")
    pages = re.findall(r"[\w./-]*\bdocs/[\w/]+(?:\.md)?", said)
    self.assertGreater(len(pages), 5)
    for page in pages:
      self.assertTrue(os.path.isabs(page) and os.path.exists(page), msg=page)

  @parameterized.parameters(
      (["trian"], "Unknown command 'trian'; did you mean 'train'"),
      (["plan", "--config=quickstrt"], "did you mean 'quickstart'"),
      (["plan", "--config=configs/gpt2.py"], "packaged one is --config=gpt2"),
      (["plan", "--config=old.py"], "configs are in bamboo_jax.configs"),
      (
          [
              "train",
              *_SMALL,
              "--config.num_steps=4",
              "--faults=quickstart_faults.csv",
              "--workdir=w",
          ],
          "quickstart_faults.csv, line 6: pipeline must be",
      ),
  )
  def test_bad_command(self, arguments, message):
    (self.folder / "old.py").write_text("from configs import default\n")
    said = self.run_script("bamboo", *arguments, status=2)
    self.assertRegex(said, rf"^error: .*{message}.*\n$")

  def test_without_extras(self):
    for name in ("matplotlib", "PIL"):  # The folder comes first on the path.
      text = f"raise ImportError(\"No module named '{name}'\")"
      (self.folder / f"{name}.py").write_text(text)
    plots = (*_SMALL[:-1], "--config.metrics.plots=True", "--workdir=w")
    said = self.run_script("bamboo", "train", *plots)
    no_plots = (
        "No plots. Figures: No module named 'matplotlib'. Install the extra: "
        "pip install 'bamboo_jax[plots]'.\n"
    )
    self.assertEqual(said.count(no_plots), 1, msg=said)
    without = (
        (("simulate", "--policies=checkpoint", "--workdir=s"), "plots"),
        (("ablate", "--sweep=seed=1,2", "--workdir=a"), "plots"),
        (("train", "--config=resnet:tiny", *_IMAGES, "--workdir=i"), "images"),
    )
    for arguments, extra in samples.draw(without, 1):
      said = self.run_script("bamboo", *arguments, status=2)
      # The files above count as the user's, whose lines are shown first.
      want = rf"(?m)^error: .*No module .*'bamboo_jax\[{extra}\]'.*\n\Z"
      self.assertRegex(said, want)

  def test_commands_without_devices(self):
    (self.folder / "own.py").write_text(_OWN)
    said = self.run_script("bamboo", "plan", "--config=own.py:2")
    self.assertIn("3 pipelines x 2 stages", said)
    said = self.run_script("bamboo", "trace", "show", "parcae_p3.csv")
    self.assertRegex(said, r"live nodes, mean +24\.01")

  @parameterized.parameters(*samples.draw(_SIMULATIONS, 1))
  def test_simulate(self, *given):
    self.run_script("bamboo", "simulate", *given, "--workdir=w")
    self.assertTrue((self.folder / "w/summary.csv").exists())

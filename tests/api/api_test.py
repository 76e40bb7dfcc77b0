"""`import bamboo_jax`: what it offers, and what goes wrong."""

import ast
import importlib
import inspect
import os
import pathlib
import pydoc
import re

from absl.testing import parameterized
import numpy as np

import bamboo_jax
from bamboo_jax import api
from bamboo_jax.checkpoint import manifest
from bamboo_jax.models import zoo
from tests import folders, samples, tiny
from tests.launch import commands

# JAX is started before, with one device.
_LATE = """
import sys
import jax
import jax.numpy as jnp
jnp.zeros(3)
import bamboo_jax
from tests import tiny

config = tiny.make_config(num_steps=3, redundancy__mode="eager")
killed = bamboo_jax.train(
    config, workdir=sys.argv[1] + "/a", faults=["2,0/1,3,kill"]
)
whole = bamboo_jax.train(config, workdir="file://" + sys.argv[1] + "/b")
assert whole.steps == bamboo_jax.train(config, workdir=sys.argv[1] + "/b").steps == 3
assert killed.state_sha256 == whole.state_sha256
assert len(killed.recoveries) == 1
from bamboo_jax.runtime import rounding
import os
assert "NPROC" not in os.environ
assert rounding.describe()["threads"] == len(os.sched_getaffinity(0))
config.pipeline.executor = "spmd"
try:
  bamboo_jax.train(config, workdir=sys.argv[1] + "/c")
except ValueError as error:
  print(error)
"""


# Interrupts itself once step 3 is shown.
_INTERRUPTED = """
import os, signal, sys
import bamboo_jax
from tests import tiny

class Shown:
  flush = sys.stdout.flush
  def write(self, line):
    if line.startswith("step=3 "):
      os.kill(os.getpid(), signal.SIGINT)

sys.stdout = Shown()
# A job in the background of a script inherits that it ignores it.
signal.signal(signal.SIGINT, signal.default_int_handler)
config = tiny.make_config(num_steps=100_000, checkpoint__every_steps=0)
try:
  bamboo_jax.cluster(config, workdir=sys.argv[1])
except KeyboardInterrupt:
  sys.exit(7)
"""


class OfferTest(parameterized.TestCase):

  def test_import_is_light(self):
    code = (
        "import sys, bamboo_jax; dir(bamboo_jax); bamboo_jax.plan\n"
        "heavy = {'jax', 'numpy', 'ml_collections'}\n"
        "print(sorted(heavy & set(sys.modules)))\n"
        "print(sorted(set(bamboo_jax.__all__) - set(dir(bamboo_jax))))\n"
        "assert all(hasattr(bamboo_jax, name) for name in bamboo_jax.__all__)\n"
    )
    done = commands.run("-c", code)
    self.assertEqual(done.stdout, "[]\n[]\n", done.stderr)

  @parameterized.parameters("plan", "cluster")
  def test_package_is_a_function_too(self, name):
    package, function = getattr(bamboo_jax, name), getattr(api, name)
    self.assertTrue(inspect.ismodule(package))
    self.assertEqual(inspect.signature(package), inspect.signature(function))
    shown = re.sub(" +\n", "\n", pydoc.plain(pydoc.render_doc(package)))
    summary, rest = inspect.getdoc(function).split("\n\n", 1)
    self.assertIn(f"\nNAME\n    bamboo_jax.{name} - {summary}\n", shown)
    self.assertIn(
        f"\nDESCRIPTION\n    {name}{inspect.signature(function)}\n\n    {rest[:30]}", shown
    )
    self.assertIn(rest, package.__doc__)

  def test_types_are_those_of_what_is_offered(self):
    tree = ast.parse(pathlib.Path(bamboo_jax.__file__).read_text())
    (block,) = (n for n in tree.body if isinstance(n, ast.If) and n.orelse)
    self.assertEqual(ast.unparse(block.test), "TYPE_CHECKING")
    names = {alias.asname: statement for statement in block.body for alias in statement.names}
    self.assertCountEqual(["__version__", *names], bamboo_jax.__all__)
    for name, statement in names.items():
      offered = getattr(bamboo_jax, name)
      typed = getattr(importlib.import_module(statement.module), name)
      self.assertEqual(inspect.signature(offered), inspect.signature(typed))
      if not inspect.ismodule(offered):
        self.assertIs(offered, typed)

  def test_unknown_name(self):
    with self.assertRaisesRegex(AttributeError, "no attribute 'trian'"):
      bamboo_jax.trian  # noqa: B018


class TrainTest(folders.FolderCase):

  def test_what_callbacks_get_and_parameters(self):
    config, seen = tiny.make_config(num_steps=3), []
    before = config.to_dict()
    result = bamboo_jax.train(
        config,
        workdir=self.folder / "run",
        callbacks=[lambda step, metrics: seen.append({"step": step, **metrics})],
    )
    steps = [line for line in result.lines if "event" not in line]
    self.assertLen(seen, 3)
    self.assertEqual([s["loss"] for s in seen], [s["loss"] for s in steps])
    self.assertEqual([{*s} for s in seen], [{*s} for s in steps])
    self.assertEqual([*result.losses], [1, 2, 3])
    self.assertEqual(config.to_dict(), before)
    self.assertFalse(config.is_locked)
    params = bamboo_jax.load(result.workdir)
    self.assertEqual(params["embed"].params["wpe"].shape, (8, 16))

  @parameterized.parameters((), ("2,0/1,apply,kill",))
  def test_an_error_of_a_callback_ends_the_run(self, *faults):
    """Also in a step that a node has died in, which nobody knows yet."""
    done = []

    def fail(step, metrics):
      done.append(step)
      if step == 3:
        raise KeyError("mine")

    config = tiny.make_config(redundancy__mode="eager")
    with self.assertRaisesRegex(KeyError, "mine"):
      bamboo_jax.train(config, workdir=self.folder, faults=faults, callbacks=[fail])
    self.assertEqual(done, [1, 2, 3])

  def test_bad_config(self):
    config = tiny.make_config()
    config.unlock()
    config.num_stpes = 3
    for call in (bamboo_jax.train, bamboo_jax.cluster):
      with self.assertRaisesRegex(ValueError, "did you mean 'num_steps'"):
        call(config, workdir=self.folder / "run")
    self.assertFalse((self.folder / "run").exists())

  def test_no_parameters_to_load(self):
    with self.assertRaisesRegex(ValueError, "There are no weights in"):
      bamboo_jax.load(self.folder / "checkpoints" / "none", zoo.make_model("gpt2"))

  @samples.only_all
  def test_jax_was_started_before(self):
    environ = {k: v for k, v in os.environ.items() if k not in ("NPROC", "XLA_FLAGS")}
    environ["PYTHONPATH"] = str(commands.ROOT)
    done = commands.run("-c", _LATE, str(self.folder), env=environ)
    self.assertEqual(done.returncode, 0, msg=done.stderr)
    self.assertIn("compare hashes only with those of this", done.stderr)
    self.assertRegex(done.stdout, "needs 2 devices, and JAX was started with 1")


class ClusterTest(folders.FolderCase):

  def test_config_file_gives_the_same_config(self):
    config = tiny.make_config(redundancy__spares=1)
    config.optimizer.schedule_options = {}  # Others than by default.
    path = api._write_config(config, self.folder)
    read = bamboo_jax.get_config(str(path))
    self.assertEqual(read.to_dict(), config.to_dict())
    api._accept(read)  # None is a placeholder there, too.

  def test_config_with_objects(self):
    config = tiny.make_config()
    config.model.options.dtype = np.float32
    with self.assertRaisesRegex(ValueError, "must be plain values"):
      bamboo_jax.cluster(config, workdir=self.folder)

  @samples.only_all
  def test_an_interrupt_saves_the_step(self):
    done = commands.run("-c", _INTERRUPTED, str(self.folder))
    self.assertEqual(done.returncode, 7, msg=done.stderr)
    saved = [name.step for name in manifest.find(self.folder / "checkpoints")]
    self.assertLen(saved, 1)
    self.assertGreaterEqual(saved[0], 3)

  def test_failure_has_the_last_line(self):
    with self.assertRaisesRegex(RuntimeError, "exit status 2: .*--nodes=1"):
      bamboo_jax.cluster(tiny.make_config(), workdir=self.folder, nodes=1)

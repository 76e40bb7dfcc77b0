import functools
import pathlib
import re
import sys
import tempfile
from unittest import mock

from absl import flags
from absl.testing import parameterized
import ml_collections

from bamboo_jax import base, config as config_lib
from bamboo_jax.cli import config_flag
from bamboo_jax.launch import cli
from bamboo_jax.training.setup import accept
from configs import default
from tests import tiny
from tests.launch import commands


def _changed(path, value):
  config = tiny.get_config().unlock()
  section = config
  *sections, key = path.split(".")
  for name in sections:
    section = section[name]
  with config.ignore_type():
    section[key] = value
  return config


def _parse(*arguments):
  """Returns the config of a command line, the other arguments, and what it says."""
  values = flags.FlagValues()
  config_flag.define("config", "default", values)
  config, rest = config_flag.parse(["command", *arguments], values)
  return config, rest[1:], values["config"].given


class ConfigFlagTest(parameterized.TestCase):

  def test_a_config_imports_its_neighbour(self):
    folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    (folder / "my_neighbour.py").write_text("STEPS = 7")
    (folder / "mine.py").write_text(
        "import my_neighbour\n"
        "import ml_collections\n"
        "def get_config(more='0'):\n"
        "  steps = my_neighbour.STEPS + int(more)\n"
        "  return ml_collections.ConfigDict({'num_steps': steps})\n"
    )
    self.enterContext(mock.patch.object(sys, "path", [*sys.path]))
    for name, steps in (("mine.py", 7), ("mine.py:3", 10)):
      self.assertEqual(config_flag.load(f"{folder}/{name}").num_steps, steps)
    del sys.modules["my_neighbour"]

  @parameterized.parameters(
      ("seed", True, "config.seed must be int, got True, bool"),
      ("model", 3, "config.model must be a dict, got 3"),
      ("modle", {}, "'modle'; did you mean 'model'"),
  )
  def test_bad_config(self, path, value, message):
    with self.assertRaisesRegex(ValueError, message):
      accept.accept(_changed(path, value))

  @parameterized.named_parameters(
      ("integer_for_float", "optimizer.learning_rate", 1),
      ("none", "optimizer.clip_norm", None),
      ("no_length", "optimizer.schedule_options.decay_steps", None),
      ("option", "model.options.anything", [1, 2]),
      ("placeholder", "plan.profile", "profile.json"),
  )
  def test_good_config(self, path, value):
    accept.accept(_changed(path, value))

  def test_options_that_are_gone(self):
    known = default.get_config()
    for name, hint in config_lib.GONE.items():
      with self.subTest(name):
        own = known
        for part in name.split(".")[1:-1]:
          own = own[part]
        self.assertNotIn(name.split(".")[-1], own)
        self.assertRegex(hint, r"^\S.*[.]$")
    with self.assertRaisesRegex(ValueError, "config.pipeline.head is gone: head"):
      accept.accept(_changed("pipeline.head", "forward"))

  @parameterized.parameters(
      ("quickstart", "quickstart"),
      ("sim/compare:quick", "sim/compare:quick"),
      ("gpt2:xl", "gpt2:xl"),
      ("examples/plain.py", "plain"),
  )
  def test_a_config_has_the_name_that_was_given(self, given, name):
    self.assertEqual(_parse(f"--config={given}")[0].name, name)

  def test_key_that_is_missing(self):
    config = ml_collections.ConfigDict({"num_steps": 3})
    with self.assertRaisesRegex(ValueError, "config.name is missing; a config"):
      accept.accept(config)

  @parameterized.named_parameters(
      ("one_dash", ["-config.num_step", "3"], "did you mean 'num_steps'"),
      ("negated", ["--noconfig.metrics.plot"], "did you mean 'plots'"),
      ("section", ["--config.pipelin.remat=x"], "did you mean 'pipeline'"),
      ("gone", ["--config.pipeline.ticks=single"], "ticks is gone: .*executor='rows'"),
      ("leaf", ["--config.seed.a=3"], "config.seed has no keys, got --config.seed.a"),
      ("next", ["--config", "no.py"], "There is no config file 'no.py'"),
      ("nothing", ["--config"], "Missing value for flag --config"),
      ("twice", ["--config=a.py", "--config", "b"], "one --config, got a.py and"),
      ("text", ["--config.model=3"], "--config.model must be a dict, got '3'"),
      (
          "integer",
          ["--config.num_steps=2.5"],
          r"--config.num_steps must be a whole number, .*'2.5'\.",
      ),
      ("truth", ["--config.metrics.plots=maybe"], "plots must be true or false, got 'maybe'"),
      ("no_function", ["--config=launch/cli.py"], "The config file has no function get_config"),
      ("variant", ["--config=configs/bench_peer.py:a"], "This config has no variants"),
  )
  def test_bad_arguments(self, arguments, message):
    with self.assertRaisesRegex((ValueError, flags.Error), message):
      _parse(*arguments)

  @parameterized.parameters(
      (
          "config.pipeline.num_stages = 'four'",
          "Cannot read the config: .*file.py:5: TypeError: Could not override field 'num_stages'",
      ),
      ("config.pipeline.num_stagse = 4", "'num_stagse'; did you mean 'num_stages'"),
      ("config.num_steps = 1 / 0", "Cannot read the config: .*file.py:5: ZeroDivisionError"),
      ("config = None", "must return an ml_collections.* got None"),
  )
  def test_bad_config_file(self, line, message):
    path = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()), "file.py")
    lines = ["from configs import default", "", "def get_config():"]
    lines += ["  config = default.get_config()", f"  {line}", "  return config"]
    path.write_text("\n".join(lines))
    with self.assertRaisesRegex(ValueError, message):
      accept.accept(_parse(f"--config={path}")[0])

  @parameterized.parameters(
      (["--config.num_steps", "3", "more"], "num_steps", 3),
      (["--noconfig.metrics.plots"], "metrics.plots", False),
      (["--config.metrics.plots"], "metrics.plots", True),
      (["--config.model.options.new"], "model.options.new", True),
      (["--config.model.options.new=[1, 'a']"], "model.options.new", [1, "a"]),
      (["--config.model.options.new=3x"], "model.options.new", "3x"),
      (["--config.model.options.variant", "3"], "model.options.variant", "3"),
      (["--config.plugins=a.b", "--config.plugins=c"], "plugins", ("a.b", "c")),
      (["--config.plugins=('a', 'b')"], "plugins", ("a", "b")),
      (["--config.data.options={'a': 1}", "--config.data.options.b=2"], "data.options.b", 2),
      (["--config.data.options.b=2", "--config.data.options={'a': 1}"], "data.options.a", 1),
  )
  def test_good_arguments(self, arguments, key, value):
    """A child process with the arguments that follow has the same config."""
    config, rest, given = _parse(*arguments)
    self.assertEqual(functools.reduce(lambda s, k: s[k], key.split("."), config), value)
    self.assertEqual(rest, ["more"] if "more" in arguments else [])
    again, rest, _ = _parse(*given.arguments)
    self.assertEqual((again.to_dict(), rest), (config.to_dict(), []))

  def test_render_marks_what_differs(self):
    options = dict(sequence_length=1024, vocab_size=256, variant="small")
    changes = {"num_steps": 9, "node.mesh.data": 1, "model.options": options}
    lines = cli._render(config_lib.Config().changed(changes)).splitlines()
    self.assertEqual([l for l in lines if "#" in l], ["config.num_steps = 9  # default: 1000"])
    self.assertIn("config.node.mesh.data = 1", lines)
    config = default.get_config()
    exec("\n".join(lines), {}, {"config": config})  # As in a config file.
    self.assertEqual(accept.accept(config).num_steps, 9)


def _find_references(section, prefix=""):
  """Yields the names of the options that are references."""
  for key, value in section.items(preserve_field_references=True):
    if isinstance(value, ml_collections.FieldReference):
      yield f"{prefix}{key}"
    elif isinstance(value, ml_collections.ConfigDict):
      yield from _find_references(value, f"{prefix}{key}.")


def _read(name, *arguments):
  """Returns an option of a command line."""
  config = accept.accept(_parse(*arguments)[0])
  find = lambda found, key: found[key] if isinstance(found, dict) else getattr(found, key)
  return functools.reduce(find, name.split("."), config)


class NoneTest(parameterized.TestCase):

  def test_wherever_the_help_says_so(self):
    names = [*_find_references(default.get_config())]
    self.assertLen(names, 19)
    last = {name.rpartition(".")[2] for name in names}
    options = config_lib.list_options(config_lib.Config)
    told = {o.name.split(".")[-1] for o in options if re.search(r"\bNone\b", o.help)}
    self.assertContainsSubset(told - {*base.OPTIONS}, last)
    for name in names:
      self.assertIsNone(_read(name, f"--config.{name}=None"), name)

  @parameterized.named_parameters(
      ("number", "num_steps", "config.num_steps must be int, got None"),
      ("text", "model.name", "config.model.name must be str, got None"),
      ("truth", "metrics.plots", "config.metrics.plots must be bool, got None"),
      (
          "tuple",
          "study.trace.nodes_per_zone",
          "config.study.trace.nodes_per_zone must have a value, got .None,",
      ),
  )
  def test_elsewhere(self, name, message):
    with self.assertRaisesRegex(ValueError, f"^{message}"):
      _read(name, f"--config.{name}=None")

  # Each starts Python, 0.3 s.
  @parameterized.parameters(("grid", 2), ("templates", 0))
  def test_beside_a_policy(self, layout, code):
    done = commands.fork(
        *("-m", "launch.plan", "--config.recovery.policy=oobleck", "--print_config"),
        *(f"--config.pipeline.layout={layout}", "--config.redundancy.mode=lazy"),
    )
    self.assertEqual(done.returncode, code, done.stderr)
    wanted = "layout has no effect with config.recovery.policy='oobleck', which sets it"
    self.assertEqual(wanted in done.stderr, code == 2, done.stderr)

  @parameterized.parameters((("None", "2"), 2.0), (("2", "None"), None))
  def test_the_last_one_counts(self, values, want):
    """Also after a file that has set it to None."""
    name = "optimizer.clip_norm"
    given = (f"--config.{name}={value}" for value in values)
    self.assertEqual(_read(name, "--config=configs/resnet.py", *given), want)

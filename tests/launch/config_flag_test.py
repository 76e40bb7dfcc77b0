import functools
import re
import sys
from unittest import mock

from absl import flags
from absl.testing import parameterized

from bamboo_jax import config as config_lib
from bamboo_jax.cli import config_flag
from bamboo_jax.launch import cli
from bamboo_jax.training.setup import accept
from configs import default
from tests import folders, tables

# What a user types, and the error.
_MISTAKES = r"""
-config.num_step 3
  did you mean 'num_steps'
--noconfig.metrics.plot
  did you mean 'plots'
--config.pipelin.remat=x
  did you mean 'pipeline'
--config.pipeline.ticks=single
  ticks is gone: .*executor='rows'
--config.seed.a=3
  config.seed has no keys, got --config.seed.a
--config.model.options.a.b.c=3
  --config.model.options.a.b.c: the config has no dict config.model.options.a.b
--config.model.options.variant.a=3
  the config has no dict config.model.options.variant
--config no.py
  There is no config file 'no.py'
--config
  Missing value for flag --config
--config=a.py --config b
  one --config, got a.py and
--config.model=3
  --config.model must be a dict, got '3'
--config.num_steps=2.5
  --config.num_steps must be a whole number, .*'2.5'\.
--config.metrics.plots=maybe
  plots must be true or false, got 'maybe'
--config=launch/cli.py
  The config file has no function get_config
--config=configs/bench_peer.py:a
  This config has no variants
--config.model.prng=rgb
  config.model.prng 'rgb'; did you mean 'rbg'
--config.pipeline.head=forward
  config.pipeline.head is gone: head
--config.pipeline.schedule=1f1
  config.pipeline.schedule '1f1'; did you mean '1f1b'
--config.pipeline.remat=mlp=dot
  config.pipeline.remat 'dot'; did you mean 'dots'
--config.pipeline.remat=none
  remat 'none'. Allowed: dots, full, inputs
--config.node.mesh.data=2
  mesh.data=2 must divide .*microbatch_size=1
--config.redundancy.refresh=grad
  refresh 'grad'.*Allowed: gradient, state
--config.redundancy.mode=lazy --config.pipeline.num_stages=1
  redundancy.mode='lazy' needs at least 2 stages, .* got config.pipeline.num_stages=1
--config.recovery.horizon_secs=inf
  above 0, got inf
--config.recovery.horizon_secs=nan
  above 0, got nan
--config.recovery.max_doubled=5.0
  max_doubled must be at least 0 and at most 2, got 5.0
--config.recovery.slow=drop
  config.recovery.slow 'drop'.*Allowed: remove
--config.recovery.slow=deal
  ^config.recovery.slow='deal' is gone; use 'remove', .*'.$
--config.recovery.slow=layers
  slow='layers' is gone; use 'remove', .*'report'.$
--config.cluster.stopped_secs=0.1
  at least 2 heartbeat_secs \(0.2\), got 0.1
--config.cluster.least_silence_secs=0.1
  least_silence_secs must be at least 2 heartbeat_secs
--config.cluster.most_silence_secs=1.0
  at least least_silence_secs \(3\), got 1.0
--config.cluster.no_progress_secs=nan
  no_progress_secs must be above 0, got nan
--config.plan.region_mbits=200
  region_latency_ms and config.plan.region_mbits must both .*got None and 200.0
--config.cost.region=here
  config.cost.region='here' has no effect without .*instance
--config.cost.prices=a.csv
  config.cost.prices='a.csv' has no effect without
--config.metrics.profile_steps=6:3
  such as 3:6, got '6:3'
--config.metrics.figure_format=png,gif
  png, pdf, svg.*got 'png,gif'
"""


def _parse(*arguments):
  """Returns the config of a command line, the other arguments, and what it says."""
  values = flags.FlagValues()
  config_flag.define("config", "default", values)
  config, rest = config_flag.parse(["command", *arguments], values)
  return config, rest[1:], values["config"].given


class ConfigFlagTest(folders.FolderCase):

  def test_a_config_imports_its_neighbour(self):
    (self.folder / "my_neighbour.py").write_text("STEPS = 7")
    (self.folder / "mine.py").write_text(
        "import my_neighbour\n"
        "import ml_collections\n"
        "def get_config(more='0'):\n"
        "  steps = my_neighbour.STEPS + int(more)\n"
        "  return ml_collections.ConfigDict({'num_steps': steps})\n"
    )
    self.enterContext(mock.patch.object(sys, "path", [*sys.path]))
    for name, steps in (("mine.py", 7), ("mine.py:3", 10)):
      self.assertEqual(config_flag.load(f"{self.folder}/{name}").num_steps, steps)
    del sys.modules["my_neighbour"]

  @parameterized.parameters(
      ("quickstart", "quickstart"),
      ("sim/compare:quick", "sim/compare:quick"),
      ("gpt2:xl", "gpt2:xl"),
      ("examples/plain.py", "plain"),
  )
  def test_a_config_has_the_name_that_was_given(self, given, name):
    self.assertEqual(_parse(f"--config={given}")[0].name, name)

  @parameterized.parameters(*tables.read(_MISTAKES))
  def test_mistakes(self, arguments, message):
    with self.assertRaisesRegex((ValueError, flags.Error), message):
      accept.accept(_parse(*arguments.split())[0])

  @parameterized.parameters(
      (
          "config.pipeline.num_stages = 'four'",
          "Cannot read the config: .*file.py:5: TypeError: Could not override field 'num_stages'",
      ),
      ("config.pipeline.num_stagse = 4", "'num_stagse'; did you mean 'num_stages'"),
      ("config.stduy.hours = 1", "file.py:5: AttributeError: 'stduy'\\sDid you mean \"study\" in"),
      ("config.num_steps = 1 / 0", "Cannot read the config: .*file.py:5: ZeroDivisionError"),
      ("open('no.txt')", "Cannot read the config: .*file.py:5: .* directory: 'no.txt'"),
      ("config.num_steps = = 1", r"Cannot read the config: SyntaxError: .*\(file.py, line 5\)"),
      ("config = None", "must return an ml_collections.* got None"),
  )
  def test_bad_config_file(self, line, message):
    path = self.folder / "file.py"
    lines = ["from configs import default", "", "def get_config():"]
    lines += ["  config = default.get_config()", f"  {line}", "  return config"]
    path.write_text("\n".join(lines))
    with self.assertRaisesRegex(ValueError, message):
      accept.accept(_parse(f"--config={path}", "--config.seed=1")[0])

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


def _read(name, *arguments):
  """Returns an option of a command line."""
  config = accept.accept(_parse(*arguments)[0])
  find = lambda found, key: found[key] if isinstance(found, dict) else getattr(found, key)
  return functools.reduce(find, name.split("."), config)


class NoneTest(parameterized.TestCase):

  def test_wherever_the_help_says_so(self):
    options = [*config_lib.list_options(config_lib.Config)]
    names = {o.name for o in options if o.kind.endswith("| None")}
    told = {o.name for o in options if re.search(r"\bNone\b", o.help)}
    self.assertContainsSubset(told, names | {"optimizer.schedule_options"})
    for name in (*names, "optimizer.schedule_options.decay_steps"):
      self.assertIsNone(_read(name, f"--config.{name}=None"), name)
    with self.assertRaisesRegex(ValueError, "^config.num_steps must be int, got None"):
      _read("num_steps", "--config.num_steps=None")

  @parameterized.parameters((("None", "2"), 2.0), (("2", "None"), None))
  def test_the_last_one_counts(self, values, want):
    """Also after a file that has set it to None."""
    name = "optimizer.clip_norm"
    given = (f"--config.{name}={value}" for value in values)
    self.assertEqual(_read(name, "--config=configs/resnet.py", *given), want)

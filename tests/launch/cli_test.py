"""Commands end with one line and the right code, whatever the user did."""

import contextlib
import io
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
from unittest import mock

from absl.testing import parameterized

from bamboo_jax.launch import options, plan
from bamboo_jax.models import zoo
from tests.launch import commands

_DEADLINE_SECS = 120
_TINY = "--config=tests/tiny.py"

# A command that does what the test says, without JAX.
_COMMAND = """
import contextlib
import dataclasses
import os
import signal

from absl import logging

from bamboo_jax.cli import command
from bamboo_jax.launch import cli


@dataclasses.dataclass(frozen=True)
class Flags:
  "None."


def main(flags: Flags):
  {body}


cli.run(main, if_interrupted=lambda: "go on")
"""
_HEARING = "cli.hearing(lambda: True)"


def _run_command(body, *arguments, before=""):
  """Runs a command whose `main` is `body`; `before` comes first."""
  command = _COMMAND.format(body=body).replace("cli.run", f"{before}\ncli.run")
  return commands.fork("-c", command, *arguments)


def _spawn(*command, **use):
  """Runs Python, whose files are those of `use`; it is no fork of this process."""
  return subprocess.run(
      [sys.executable, *command], cwd=commands.ROOT, text=True, timeout=_DEADLINE_SECS, **use
  )


class CliTest(parameterized.TestCase):

  def assert_one_line(self, done, line, *, code=2):
    self.assertEqual(done.returncode, code, done.stderr)
    self.assertRegex(done.stderr, f"^error: .*{line}.*\n$")
    self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
    self.assertEqual(done.stdout, "")

  # Each starts Python, 0.3 s, but not JAX.
  @parameterized.named_parameters(
      ("flag", ["--stopat=3"], "flag 'stopat'. Did you mean: stop_at"),
      ("flag_value", [_TINY, "--stop_at=0"], "--stop_at must be at least 1, got 0"),
      ("flag_type", ["--stop_at=x"], "--stop_at must be a whole number, got"),
      ("needed", [_TINY], "The flag --workdir is needed"),
      ("argument", [_TINY, "more"], "Unexpected arguments: more"),
      ("override", [_TINY, "--config.num_steps=x"], "--config.num_steps must be a whole number"),
      ("file", ["--config=README.md"], "Cannot read the config: SyntaxError"),
  )
  def test_bad_flags_of_train(self, arguments, line):
    if not line.startswith("The flag"):
      arguments = [*arguments, "--workdir=build/never_made"]
    self.assert_one_line(commands.fork("-m", "launch.train", *arguments), line)

  @parameterized.parameters(
      ("pipeline", "pipeline: section", "pipeline.num_stages: int = 4"),
      ("config.pipeline.num_stages", "pipeline.num_stages: int = 4", "    Nodes of a pipeline"),
      ("num_stages", "pipeline.num_stages: int = 4", "    Nodes of a pipeline"),
      ("microbatch", "did you mean 'microbatch_size'", "Sections: model, data"),
  )
  def test_options(self, name, first, then):
    with contextlib.redirect_stdout(io.StringIO()) as out:
      try:
        options.main(options.OptionsFlags((name,)))
        text = out.getvalue()
      except ValueError as error:
        text = f"{error}"
    self.assertIn(first, text.splitlines()[0])
    self.assertIn(then, text)

  def test_print_config_does_nothing_else(self):
    done = commands.fork("-m", "launch.train", _TINY, "--config.num_steps=7", "--print_config")
    self.assertEqual((done.returncode, done.stderr), (0, ""))
    self.assertIn("config.num_steps = 7  # default: 1000\n", done.stdout)

  @parameterized.parameters("--help", "--helpshort", "--helpfull", "-?")
  def test_help_is_no_error(self, flag):
    done = commands.fork("-m", "launch.train", flag)
    self.assertEqual((done.returncode, done.stderr), (0, ""))
    self.assertIn("--workdir", done.stdout)

  def test_mistake_of_the_user_or_ours(self):
    body = "raise ValueError('x must be 3,\\n got 4.')"
    self.assert_one_line(_run_command(body), "must be 3, got")
    for done in (_run_command(body, "--verbosity=1"), _run_command("raise KeyError('here')")):
      self.assertEqual(done.returncode, 1)
      self.assertIn("Traceback", done.stderr)

  def test_own_code_that_raises_shows_its_lines(self):
    path = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()), "mine.py")
    path.write_text("def loss():\n  return {}['x']\n")
    body = f"from bamboo_jax import base; base.find_function('{path}:loss', what='x')()"
    done = _run_command(body)
    self.assertEqual(done.returncode, 2)
    first, *middle, last = done.stderr.splitlines()
    self.assertEqual(first, "Traceback of your code (most recent call last):")
    self.assertEqual(middle[:2], [f'  File "{path}", line 2, in loss', "    return {}['x']"])
    self.assertEqual(last, f"error: {path}:2: KeyError: 'x' (traceback: --verbosity=1)")

  @parameterized.parameters(
      ("raise ValueError('bad x')", "bad x (traceback: --verbosity=1)"),
      ("raise base.EndedError('n1 died')", "n1 died"),
      ("raise base.UnrecoverableHereError((1,))", "Lost all copies of stage 1"),
      ("open('/no/file')", "/no/file: No such file or directory. (traceback: --verb"),
  )
  def test_a_traceback_is_named_where_there_is_one(self, body, line):
    done = _run_command(f"from bamboo_jax import base; {body}")
    self.assert_one_line(done, re.escape(line))
    self.assertEqual("traceback" in line, "traceback" in done.stderr)

  def test_only_warnings_are_shown(self):
    body = "logging.info('quiet'); logging.warning('%s', 'loud')"
    done = _run_command(body)
    self.assertEqual(done.stderr, "warning: loud\n")
    self.assertEqual(done.returncode, 0)

  @parameterized.named_parameters(
      ("callback", "gc.callbacks.append(lambda *unused: send()); gc.collect()"),
      ("destructor", "Dropped()"),
      (
          *("start_of_a_module", "Loader('name', 'path').create_module(None)"),
          "warning: was not interrupted there\n",
      ),
  )
  def test_an_interrupt_at_a_bad_moment_comes_a_little_later(self, act, before=""):
    body = f"""
  import gc, importlib.machinery, time

  send = lambda: [signal.raise_signal(signal.SIGINT), gc.callbacks.clear()]

  class Dropped:
    def __del__(self):
      send()

  class Loader(importlib.machinery.ExtensionFileLoader):
    def create_module(self, spec):
      send()
      time.sleep(3 * command._AGAIN_SECS)  # The alarm may come, too.
      logging.warning("was not interrupted there")

  {act}
  time.sleep(5)
"""
    done = _run_command(body)
    self.assertEqual(done.returncode, 130, done.stderr)
    self.assertEqual(done.stderr, f"{before}error: interrupted; go on\n")

  # Signals that come while a step is under way; "s" ends that.
  @parameterized.named_parameters(
      ("one", "TERM s", 143, ["terminated: finish", "saved", "terminated; go on"]),
      ("interrupt", "INT s", 130, ["interrupted: finish", "saved", "interr"]),
      ("announced", "USR1 USR1 s", 138, ["told to end.*: fin", "saved", "told"]),
      ("two", "TERM TERM s", 143, ["terminated: finish", "terminated; go on"]),
      ("both", "INT TERM s", 143, ["interrupted: finish", "terminated; go on"]),
      (
          *("then_announced", "TERM USR1 s", 143),
          ["terminated: finish", "saved", "terminated; go on"],
      ),
      (
          *("announced_before", "USR1 TERM s", 138),
          ["told to end.*: finish", "saved", "told to end.*; go on"],
      ),
      # Its shell and the kernel may both say so; what is written is kept.
      ("terminal", "HUP HUP s", 129, ["hung up: finish", "saved", "hung up; go on"]),
      (
          "nohup",
          "HUP HUP s",
          0,
          ["saved"],
          _HEARING,
          "signal.signal(signal.SIGHUP, signal.SIG_IGN)",
      ),
      ("before", "TERM", 143, ["terminated; go on"], "cli.hearing(lambda: False)"),
      ("outside", "TERM", 143, ["terminated; go on"], "contextlib.nullcontext()"),
      ("announced_outside", "USR1", 138, ["told to.* SIGUSR1; go on"], "contextlib.nullcontext()"),
      ("none", "s", 0, ["saved"]),
  )
  def test_signals_are_heard(self, script, code, lines, block=_HEARING, before=""):
    body = f"""
  with {block}:
    for name in {script.split()}:
      if name == "s":
        logging.warning("saved")
      else:
        signal.raise_signal(signal.Signals["SIG" + name])
"""
    done = _run_command(body, before=before)
    self.assertEqual(done.returncode, code, done.stderr)
    self.assertRegex(done.stderr, "^" + "".join(f".*{line}.*\n" for line in lines) + "$")

  def test_outputs_without_a_reader_after_a_hangup(self):
    """Training ends as told rather than by an error of `print`."""
    reader, writer = os.pipe()
    os.close(reader)
    folder = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory()))
    command = _COMMAND.format(body=f"""
  with cli.hearing(lambda: True):
    signal.raise_signal(signal.SIGHUP)
    print("step", flush=True)
    open({str(folder / 'saved')!r}, "w")
""")
    with open(writer, "w") as output:
      done = _spawn("-c", command, stdout=output, stderr=output)
    self.assertEqual(done.returncode, 129)
    self.assertTrue((folder / "saved").exists())

  def test_an_interrupt_that_python_ignores(self):
    """It comes in a callback, as that of a garbage collection."""
    body = """
  class Callback:
    def __del__(self):
      signal.raise_signal(signal.SIGINT)
  Callback()
  signal.pause()
"""
    start_secs = time.monotonic()
    done = _run_command(body)
    self.assert_one_line(done, "interrupted; go on", code=130)
    self.assertLess(time.monotonic() - start_secs, 25)  # Not by the watchdog.

  @parameterized.parameters(("1",), ("2",), ("0", "1", "2"))
  def test_closed_files(self, *closed):
    """What is opened next does not get the number of the output."""
    path = pathlib.Path(self.enterContext(tempfile.TemporaryDirectory())) / "x"
    command = _COMMAND.format(body=f"""
  with open({str(path)!r}, "w") as file:
    print("x", flush=True)
    os.write(1, b"y")
    file.write(str(file.fileno() > 2))
""")
    done = subprocess.run(
        ["sh", "-c", 'exec "$@" ' + " ".join(f"{n}>&-" for n in closed), "sh"]
        + [sys.executable, "-c", command],
        cwd=commands.ROOT,
        capture_output=True,
        text=True,
        timeout=_DEADLINE_SECS,
    )
    self.assertEqual((done.returncode, done.stderr), (0, ""))
    self.assertEqual(path.read_text(), "True")

  def test_a_full_disk_of_the_list_of_commands(self):
    with open("/dev/full", "w") as full:
      done = _spawn("-m", "launch", stdout=full, stderr=subprocess.PIPE)
    self.assertEqual(
        (done.returncode, done.stderr), (2, "error: standard output: No space left on device\n")
    )

  def test_a_second_signal_lets_a_command_tidy_up(self):
    body = """
  try:
    with cli.hearing(lambda: True, tidies=True):
      signal.raise_signal(signal.SIGTERM)
      signal.raise_signal(signal.SIGINT)
      logging.warning("not reached")
  finally:
    logging.warning("tidy")
"""
    done = _run_command(body)
    self.assertEqual(done.returncode, 130, done.stderr)
    self.assertRegex(done.stderr, "terminated: .*\nwarning: tidy\nerror: inter")

  def test_tidying_up_that_never_ends(self):
    body = """command._PATIENCE_SECS = 0.1
  try:
    signal.raise_signal(signal.SIGINT)
  finally:
    signal.pause()
"""
    done = _run_command(body)
    self.assert_one_line(done, "interrupted; go on", code=130)

  def test_list_of_models(self):
    out = self.enterContext(contextlib.redirect_stdout(io.StringIO()))
    variants = {"gpt2": ["tiny"], "llama": ["tiny"]}
    with mock.patch.object(zoo, "VARIANTS", variants):
      plan.main(plan.PlanFlags(list=True))
    rows = [line.split(",") for line in out.getvalue().splitlines()]
    self.assertEqual(rows[0], ["name", "variant", "layers", "params"])
    made = [zoo.make_model(name, variant="tiny") for name in variants]
    want = [[str(len(m.layers)), str(m.num_params())] for m in made]
    self.assertEqual([row[2:] for row in rows[1:]], want)
    self.assertEqual([row[0] for row in rows[1:]], [*variants])

  def test_nobody_reads(self):
    reader, writer = os.pipe()
    os.close(reader)
    with open(writer, "w") as stdout, tempfile.TemporaryFile("w+") as stderr:
      command = _COMMAND.format(body="print('x', flush=True)")
      done = _spawn("-c", command, stdout=stdout, stderr=stderr)
      with contextlib.suppress(OSError):
        stdout.close()
      stderr.seek(0)
      self.assertEqual(stderr.read(), "")
    self.assertEqual(done.returncode, 128 + signal.SIGPIPE)

"""Commands end with one line and the right code, whatever the user did."""

import os
import signal
import subprocess
import sys
from unittest import mock

from absl.testing import parameterized

from bamboo_jax.launch import kill, options, plan, status
from bamboo_jax.local_cluster import inquiry
from bamboo_jax.models import zoo
from tests import folders
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

from bamboo_jax import base
from bamboo_jax.launch import cli


@dataclasses.dataclass(frozen=True)
class Flags:
  "None."


def main(flags: Flags):
  {body}


cli.run(main, if_interrupted=lambda: "go on")
"""
_HEARING = "cli.hearing(lambda: True)"
# A second signal lets a command tidy up.
_TIDY = """
  try:
    with cli.hearing(lambda: True, tidies=True):
      signal.raise_signal(signal.SIGTERM)
      signal.raise_signal(signal.SIGINT)
      logging.warning("not reached")
  finally:
    logging.warning("tidy")
"""
_NEVER_TIDY = """cli._PATIENCE_SECS = 0.1
  try:
    signal.raise_signal(signal.SIGINT)
  finally:
    signal.pause()
"""


def _run_command(body, *arguments, before=""):
  """Runs a command whose `main` is `body`; `before` comes first."""
  command = _COMMAND.format(body=body).replace("cli.run", f"{before}\ncli.run")
  return commands.fork("-c", command, *arguments)


class CliTest(folders.FolderCase):

  def check(self, body, code, said, *arguments, before=""):
    """Runs a command, see `_run_command`; `said` is its standard error."""
    done = _run_command(body, *arguments, before=before)
    self.assertEqual(done.returncode, code, done.stderr)
    self.assertRegex(done.stderr, f"^{said}$")
    self.assertEqual(done.stdout, "")

  @parameterized.parameters(
      ("pipeline", "pipeline: section", "pipeline.num_stages: int = 4"),
      ("config.pipeline.num_stages", "pipeline.num_stages: int = 4", "    Nodes of a pipeline"),
      ("num_stages", "pipeline.num_stages: int = 4", "    Nodes of a pipeline"),
      ("microbatch", "did you mean 'microbatch_size'", "Sections: model, data"),
  )
  def test_options(self, name, first, then):
    with folders.printed() as out:
      try:
        options.main(options.OptionsFlags((name,)))
        text = out.getvalue()
      except ValueError as error:
        text = f"{error}"
    self.assertIn(first, text.splitlines()[0])
    self.assertIn(then, text)

  def test_print_config_does_nothing_else(self):
    # What a policy sets may be given all the same.
    policy = ("--config.recovery.policy=oobleck", "--config.pipeline.layout=templates")
    given = (_TINY, *policy, "--config.redundancy.mode=lazy", "--config.num_steps=7")
    done = commands.fork("-m", "launch.train", *given, "--print_config")
    self.assertEqual((done.returncode, done.stderr), (0, ""))
    self.assertIn("config.num_steps = 7  # default: 1000\n", done.stdout)

  @parameterized.parameters("--help", "--helpshort", "--helpfull", "-?")
  def test_help_is_no_error(self, flag):
    done = commands.fork("-m", "launch.train", flag)
    self.assertEqual((done.returncode, done.stderr), (0, ""))
    self.assertIn("--workdir", done.stdout)

  @parameterized.named_parameters(
      (
          "mistake",
          "raise ValueError('x must be 3,\\n got 4.')",
          2,
          r"error: x must be 3, got 4\. \(traceback: --verbosity=1\)\n",
      ),
      ("with_traceback", "raise ValueError('x')", 1, "(?s:.*)Traceback(?s:.*)", "--verbosity=1"),
      ("ours", "raise KeyError('here')", 1, "(?s:.*)Traceback(?s:.*)"),
      ("ended", "raise base.EndedError('n1 died')", 2, "error: n1 died\n"),
      ("ended_alone", "raise base.EndedError('n1 died')", 2, ".*: n1 died\n", "--verbosity=1"),
      (
          "file",
          "open('/no/file')",
          2,
          r"error: /no/file: No such file or directory\. \(traceback: --verb.*\n",
      ),
      ("warning", "logging.info('quiet'); logging.warning('%s', 'loud')", 0, "warning: loud\n"),
      ("tidy", _TIDY, 130, "terminated: .*\nwarning: tidy\nerror: inter.*\n"),
      ("tidying_never_ends", _NEVER_TIDY, 130, "error: interrupted; go on\n"),
  )
  def test_ends(self, body, code, said, *arguments):
    self.check(body, code, said, *arguments)

  def test_own_code_that_raises_shows_its_lines(self):
    path = self.folder / "mine.py"
    path.write_text("def loss():\n  return {}['x']\n")
    body = f"from bamboo_jax import base; base.find_function('{path}:loss', what='x')()"
    done = _run_command(body)
    self.assertEqual(done.returncode, 2)
    first, *middle, last = done.stderr.splitlines()
    self.assertEqual(first, "Traceback of your code (most recent call last):")
    self.assertEqual(middle[:2], [f'  File "{path}", line 2, in loss', "    return {}['x']"])
    self.assertEqual(last, f"error: {path}:2: KeyError: 'x' (traceback: --verbosity=1)")

  @parameterized.named_parameters(
      ("callback", "gc.callbacks.append(lambda *unused: send()); gc.collect()"),
      ("destructor", "Dropped()"),
      (
          "start_of_a_module",
          "Loader('name', 'path').create_module(None)",
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
      time.sleep(3 * cli._AGAIN_SECS)  # The alarm may come, too.
      logging.warning("was not interrupted there")

  {act}
  time.sleep(5)
"""
    self.check(body, 130, f"{before}error: interrupted; go on\n")

  # Signals that come while a step is under way; "s" ends that.
  @parameterized.named_parameters(
      ("one", "TERM s", 143, ["terminated: finish", "saved", "terminated; go on"]),
      ("interrupt", "INT s", 130, ["interrupted: finish", "saved", "interr"]),
      ("announced", "USR1 USR1 s", 138, ["told to end.*: fin", "saved", "told"]),
      ("two", "TERM TERM s", 143, ["terminated: finish", "terminated; go on"]),
      ("both", "INT TERM s", 143, ["interrupted: finish", "terminated; go on"]),
      ("then_announced", "TERM USR1 s", 143, ["terminated: finish", "saved", "terminated; go on"]),
      (
          "announced_before",
          "USR1 TERM s",
          138,
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
    self.check(body, code, "".join(f".*{line}.*\n" for line in lines), before=before)

  @parameterized.parameters(("1",), ("2",), ("0", "1", "2"))
  def test_closed_files(self, *closed):
    """What is opened next does not get the number of the output."""
    path = self.folder / "x"
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

  @parameterized.parameters(
      ("contextlib.nullcontext()", "", 128 + signal.SIGPIPE, False),
      # Training ends as told rather than by an error of `print`.
      (_HEARING, "signal.raise_signal(signal.SIGHUP)", 129, True),
  )
  def test_outputs_without_a_reader(self, block, happens, code, is_saved):
    reader, writer = os.pipe()
    os.close(reader)
    saved = self.folder / "saved"
    command = _COMMAND.format(body=f"""
  with {block}:
    {happens}
    print("step", flush=True)
    open({str(saved)!r}, "w")
""")
    errors = writer if is_saved else subprocess.PIPE  # A terminal that hangs up reads neither.
    done = commands.run("-c", command, stdout=writer, stderr=errors)
    os.close(writer)
    self.assertEqual((done.returncode, saved.exists()), (code, is_saved))
    self.assertFalse(done.stderr)

  def test_a_full_disk_of_the_list_of_commands(self):
    with open("/dev/full", "w") as full:
      done = commands.run("-m", "launch", stdout=full, stderr=subprocess.PIPE)
    self.assertEqual(
        (done.returncode, done.stderr), (2, "error: standard output: No space left on device\n")
    )

  def test_list_of_models(self):
    out = self.enterContext(folders.printed())
    with mock.patch.object(zoo, "VARIANTS", {"gpt2": ["tiny"], "llama": ["tiny"]}):
      plan.main(plan.PlanFlags(list=True))
    head, *rows = out.getvalue().splitlines()
    self.assertEqual(head, "name,variant,layers,params")
    for row, name in zip(rows, ("gpt2", "llama"), strict=True):
      made = zoo.make_model(name, variant="tiny")
      self.assertEqual(row, f"{name},tiny,{len(made.layers)},{made.num_params()}")

  def test_a_node_to_kill_has_just_died(self):
    """The others are killed all the same."""
    out = self.enterContext(folders.printed())
    observed = status.ObserverFlags(workdir="runs/none")
    with mock.patch.object(inquiry, "find_workers", lambda logs: {"n1": 7, "n2": 8}):
      with mock.patch.object(os, "kill", side_effect=[ProcessLookupError, None]) as call:
        kill.main(kill.KillFlags(names=("n1", "n2"), observed=observed))
    self.assertEqual(call.mock_calls, [mock.call(pid, signal.SIGKILL) for pid in (7, 8)])
    self.assertEqual(out.getvalue(), "n1: worker 7 had just died\nn2: worker 8 was killed\n")

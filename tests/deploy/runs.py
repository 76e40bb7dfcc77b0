"""Runs that others start."""

import os
import shlex
import subprocess
import sys

from tests.launch import commands

# With the flags of the run to compare with: sshd passes on no variables.
_BAMBOO = f"""
export PYTHONPATH={commands.ROOT} JAX_PLATFORMS=cpu
export XLA_FLAGS={shlex.quote(os.environ.get("XLA_FLAGS", ""))}
python="{sys.executable} -m launch.$1"
[ "$1" != agent ] || python+=" {commands.PROGRAM_CACHE}"
shift
"""


class DeployedCase(commands.CommandCase):
  """Has a config, and `bamboo` on the PATH."""

  def setUp(self):
    super().setUp()
    self.workdir = self.folder / "run"
    self.write_program("bamboo", f'{_BAMBOO}exec $python "$@"\n')
    self.environ = {**os.environ, "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}"}

  def write_program(self, name, text):
    """Writes a shell script that stands for a program."""
    path = self.folder / "bin" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/usr/bin/env bash\n{text}")
    path.chmod(0o755)

  def run_program(self, *command, **changes):
    """Runs a program to its end; `changes` are of its environment."""
    return subprocess.run(
        command,
        cwd=self.folder,
        env=self.environ | changes,
        capture_output=True,
        text=True,
        timeout=300,
    )

  def check_commands(self, before=""):
    """Makes `bamboo` run the lines `before`, and only check its arguments."""
    run = 'exec $python "$@" --only_check_args\n'
    self.write_program("bamboo", before + _BAMBOO + run)

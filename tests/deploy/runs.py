"""Runs that others start, on nodes to which tests do something.

Steps are slow until the test releases the run, so that there is time for nodes
to die and to be replaced, and the run ends soon after that.
"""

import json
import os
import shlex
import sys

from bamboo_jax.cluster import judge, records as records_lib
from bamboo_jax.net import identity as identity_lib
from tests.launch import commands

_WHOLE: list[str] = []  # The hash of the state, once it is known.
# With the flags of the run to compare with: sshd passes on no variables.
_BAMBOO = f"""
export PYTHONPATH={commands.ROOT} JAX_PLATFORMS=cpu
export XLA_FLAGS={shlex.quote(os.environ.get("XLA_FLAGS", ""))}
python="{sys.executable} -m launch.$1"
[ "$1" != agent ] || python+=" {commands.PROGRAM_CACHE}"
shift
"""


class DeployedCase(commands.CommandCase):
  """Has a config of a run on three nodes, and `bamboo` on the PATH."""

  CHANGES = {
      "num_steps": 80,
      "pipeline.num_pipelines": 1,
      "pipeline.num_stages": 2,
      "pipeline.num_microbatches": 2,
      "checkpoint.every_steps": 25,
      "redundancy.spares": 1,
  }
  HELD_FROM = 1

  def setUp(self):
    super().setUp()
    self.workdir = self.folder / "run"
    self.secret = self.workdir / "secret"
    self.write_program("bamboo", f'{_BAMBOO}exec $python "$@"\n')
    self.environ = {**os.environ, "PATH": f"{self.folder / 'bin'}:{os.environ['PATH']}"}

  def write_program(self, name, text):
    """Writes a shell script that stands for a program."""
    path = self.folder / "bin" / name
    path.parent.mkdir(exist_ok=True)
    path.write_text(f"#!/usr/bin/env bash\n{text}")
    path.chmod(0o755)

  def check_commands(self, before=""):
    """Makes `bamboo` run the lines `before`, and only check its arguments."""
    run = 'exec $python "$@" --only_check_args\n'
    self.write_program("bamboo", before + _BAMBOO + run)

  def members(self):
    """Returns the members by name; none before the first step."""
    metrics = self.workdir / "metrics.jsonl"
    if not (metrics.exists() and b'"loss"' in metrics.read_bytes()):
      return {}
    key = identity_lib.find_entry_key(identity_lib.read_secret(str(self.secret)))
    view = judge.run(judge.newest_view(), records_lib.Records(self.workdir, key))
    return {m.name: m for m in view.members}

  def wait_member(self, name):
    """Returns the member of that name once it has joined."""
    return self.wait_for(lambda: self.members().get(name), f"member {name}")

  def check_state(self):
    """Compares the state with that of `bamboo train`, which runs once."""
    self.release()
    if not _WHOLE:
      self.finish(self.start("train", workdir="whole"))
      _WHOLE.append(self.summary("whole")["state_sha256"])
    found = json.loads((self.workdir / "summary.json").read_text())
    self.assertEqual(found["state_sha256"], _WHOLE[0])

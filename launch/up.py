r"""Starts the nodes of a cluster on other machines, over ssh.

bamboo up hosts.txt --config=quickstart --workdir=/shared/run --host=10.0.0.5

`hosts.txt` has a line for each machine: the name that ssh knows, and a zone.
Runs `bamboo store` here, copies only the config, into the workdir, and shows
steps, deaths, and what agents complain of. A machine that fails is tried again
every 10 s. On Ctrl-C the nodes save the step, and all agents end.
"""

import pathlib
import re
import shlex
import shutil
import subprocess
import sys

from absl import flags

from bamboo_jax import base
from bamboo_jax.cli import config_check
from bamboo_jax.cluster import children
from bamboo_jax.launch import cli, config_flag, shared_flags
from bamboo_jax.local_cluster import hosts as hosts_lib, narrator as narrator_lib
from bamboo_jax.metrics import progress as progress_lib, summary as summary_lib

_CONFIG = config_flag.define("default", "What to train.")
_WORKDIR = shared_flags.define_workdir("Folder that all machines share.")
_HOST = flags.DEFINE_string(
    "host", None, "Address at which others reach this machine.", required=True
)
flags.DEFINE_integer("nodes", None, "Number of nodes to begin with.")
_SSH = flags.DEFINE_string(
    "ssh", "ssh -oBatchMode=yes -oConnectTimeout=10", "Command that connects."
)
_BAMBOO = flags.DEFINE_string("bamboo", "bamboo", "Command on the machines.")


def main(arguments: list[str]) -> None:
  """Runs agents until all have ended."""
  if len(arguments) != 1:
    raise ValueError("Give one file of hosts: bamboo up hosts.txt ...")
  hosts = hosts_lib.parse(pathlib.Path(arguments[0]).read_text())
  workdir = pathlib.Path(_WORKDIR.value).absolute()
  summary = workdir / "summary.json"
  former = summary.read_bytes() if summary.exists() else None
  command = [sys.executable, "-m", "bamboo_jax.launch.store", "--port=0"]
  store = subprocess.Popen(
      [*command, f"--workdir={workdir}", f"--host={_HOST.value}"],
      stdout=subprocess.PIPE,
      text=True,
      preexec_fn=children.die_with_parent,
  )
  assert store.stdout is not None
  if not (said := store.stdout.readline()):  # It does not have the folder.
    sys.exit(2)  # It has said why.
  print(said, end="", flush=True)
  passed = cli.find_arguments(("config", "nodes"), sys.argv[1:])
  for name in config_check.find_paths(sys.argv[1:]):
    path, colon, argument = name.partition(":")
    if pathlib.Path(path).is_file():
      copy = shutil.copy(path, workdir / "config.py")
      given = re.compile(rf"--?config(=.*)?|{re.escape(name)}")
      passed = [p for p in passed if not given.fullmatch(p)]
      name = f"--config.name={_CONFIG.value.name}"  # Not that of the copy.
      passed += [f"--config={copy}{colon}{argument}", name]
  agent = [*shlex.split(_BAMBOO.value), "agent", "--noprogress"]
  agent.append(f"--workdir={workdir}")
  ssh = shlex.split(_SSH.value)
  progress = progress_lib.ProgressLine(num_steps=_CONFIG.value.num_steps)
  narrator = narrator_lib.Narrator(str(workdir), progress)
  narrator.start()  # Once for all, rather than each agent.
  with progress:
    hosts_lib.Fleet(hosts, ssh=ssh, agent=[*agent, *passed]).run()
    narrator.close()
  store.kill()
  if not summary.exists() or summary.read_bytes() == former:
    raise base.EndedError("All agents have ended, and the run is not complete.")
  print(f"state_sha256={summary_lib.read_summary(summary).state_sha256}")


if __name__ == "__main__":
  cli.run(main, takes_arguments=True)

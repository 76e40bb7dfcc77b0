"""The command `bamboo`, which runs those of this folder by their names.

bamboo train --config=quickstart --workdir=runs/first

In a clone without an installation: python -m launch train ...
"""

from collections.abc import Mapping
import os
import pathlib
import re
import sys
import textwrap
from typing import NoReturn

import bamboo_jax
from bamboo_jax import base
from bamboo_jax.base import packaged

_FOLDER = pathlib.Path(__file__).resolve().parent
GROUPS: Mapping[str, tuple[str, ...]] = {
    "train": (
        *("quickstart", "plan", "profile", "train", "cluster", "status", "report"),
        *("options", "kill"),
    ),
    "machines": ("agent",),
    "data": ("tokenize", "convert"),
    "study": ("simulate", "trace", "ablate", "verify"),
}
# Commands of earlier versions, and what follows "NAME is gone: ".
GONE: Mapping[str, str] = {
    "bench": "it is bamboo ablate --interleave=5; see docs/guides/sweeps.md.",
    "compare": "it is bamboo report A B --same.",
    "cost": "it is bamboo report A.",
    "debug": "it is bamboo status --stacks --workdir=A.",
    "explore": "in a clone of the repository it is python -m tests.explorer.",
    "gpu_compile": "it is bamboo plan --compile=h100.",
    "layouts": "it is bamboo verify --layouts=20.",
    "models": "it is bamboo plan --list.",
    "store": "a run needs only its --workdir; see docs/guides/deploy.md.",
    "sweep_faults": "it is bamboo verify.",
    "up": "bamboo agent starts each node; see docs/guides/deploy.md.",
    "validate": "it is bamboo cluster, then bamboo simulate --beside=A.",
}
_HELP = """\
usage: bamboo COMMAND [--flag=value ...]
       bamboo COMMAND --help    what it does, and its flags

{commands}

Configs, for --config=NAME; also --config=FILE, and NAME:ARGUMENT for variants:
{configs}

Pages:
  docs/start/first_run.md
  docs/reference/options.md, or bamboo options, for --config.NAME=VALUE
"""


def read_summaries() -> dict[str, str]:
  """Returns the first line on each command by its name, in the order of groups.

  Reads the modules without importing them, which would take seconds.
  """
  found = {}
  for name in (name for names in GROUPS.values() for name in names):
    text = (_FOLDER / f"{name}.py").read_text(encoding="utf-8")
    (found[name],) = re.findall(r'\Ar?"""(.*)', text)
  return found


def render() -> str:
  """Returns the text of `bamboo --help`."""
  summaries, lines = read_summaries(), []
  for group, names in GROUPS.items():
    lines += [f"{group}:", *(f"  {name:12} {summaries[name]}" for name in names)]
  configs = textwrap.indent(textwrap.fill(", ".join(packaged.list_configs()), 78), "  ")
  return _HELP.format(commands="\n".join(lines), configs=configs)


def main() -> None:
  """Runs the command that the first argument names."""
  name, *arguments = sys.argv[1:] or ["--help"]
  known = [name for names in GROUPS.values() for name in names]
  if name in ("--help", "-h", "help"):
    _show(packaged.locate_pages(render()))
  elif name == "--version":
    _show(f"bamboo_jax {bamboo_jax.__version__}\n")
  elif name in GONE:
    _fail(packaged.locate_pages(f"bamboo {name} is gone: {GONE[name]}"))
  elif name not in known:
    _fail(base.suggest(name, known, what="command"))
  else:
    command = [sys.executable, "-m", f"bamboo_jax.launch.{name}", *arguments]
    os.execv(sys.executable, command)


def _show(text: str) -> None:
  try:
    print(text, end="", flush=True)
  except OSError as error:
    _fail(f"standard output: {error.strerror}")


def _fail(message: str) -> NoReturn:
  print(f"error: {message}", file=sys.stderr, flush=True)
  os._exit(2)  # Python would try to write the rest of standard output.


if __name__ == "__main__":
  main()

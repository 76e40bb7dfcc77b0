"""The command `bamboo`, which runs those of this folder by their names.

bamboo train --config=quickstart --workdir=runs/first

In a clone without an installation: python -m launch train ...
"""

import os
import pathlib
import sys
from typing import NoReturn

import bamboo_jax
from bamboo_jax import base
from bamboo_jax.base import packaged
from bamboo_jax.cli import listing

_FOLDER = pathlib.Path(__file__).resolve().parent


def main() -> None:
  """Runs the command that the first argument names."""
  name, *arguments = sys.argv[1:] or ["--help"]
  summaries = listing.read_summaries(_FOLDER)
  if name in ("--help", "-h", "help"):
    _show(packaged.locate_pages(listing.render(summaries, packaged.list_configs())))
  elif name == "--version":
    _show(f"bamboo_jax {bamboo_jax.__version__}\n")
  elif name == "explore":
    _fail("explore is no command; in a clone of the repository it is python -m tests.explorer.")
  elif name not in summaries:
    _fail(base.suggest(name, summaries, what="command"))
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

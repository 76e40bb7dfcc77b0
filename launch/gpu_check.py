r"""Checks and times a machine with one GPU, and prints a table with MFU.

launch/gpu_check                            everything, GPT-2 medium in bfloat16
launch/gpu_check --only=programs,pipeline --out=gpu.json
launch/gpu_check --smoke                    small sizes, also without a GPU

What is checked, each in a process of its own:

  device       which GPU, runtime and versions; always
  memory       the allocator counts, frees and donates as the planner assumes
  programs     time, rate and MFU of the programs of layers and stages
  offload      host memory keeps bits; bandwidth; overlap with compute
  determinism  which XLA flags give the same bits again, and what they cost
  pipeline     a pipeline on one device computes the gradient of `jax.grad`

A check that fails prints FAILED with its reasons, the others go on, and the
exit code is then 1. `docs/gpu_check.md` says how to read the results.
"""

import argparse
from collections.abc import Mapping, Sequence
import dataclasses
import sys

from bamboo_jax import base
from launch.checks import finding as finding_lib
from launch.checks import settings as settings_lib
from launch.checks import suite

# Fields of the settings that are options of the command.
_OPTIONS = {
    "variant": (str, "size of GPT-2, tiny to xl"),
    "dtype": (str, "of activations and products: bfloat16 or float32"),
    "vocab_size": (int, "tokens of the vocabulary"),
    "sequence_length": (int, "tokens per example"),
    "microbatch_size": (int, "examples per microbatch"),
    "dropout_rate": (float, "rate of all dropout"),
    "prng": (str, "generator of dropout: threefry2x32 or rbg"),
    "num_stages": (int, "stages to cut the model into and time"),
    "remat": (str, "kept for the backward pass: full, dots or inputs"),
    "num_repeats": (int, "times that each thing is timed"),
    "peak_tflops": (float, "peak of the device, if it is not in our table"),
}


def parse_args(argv: Sequence[str]) -> argparse.Namespace:
  """Returns the options; `settings` and `names` are what to check.

  Raises:
    ValueError: An option has a value that is not allowed.
  """
  # Not absl flags: those of the other commands need packages that a machine
  # with nothing but JAX does not have.
  parser = argparse.ArgumentParser(
      prog="launch/gpu_check",
      description=__doc__.splitlines()[0],
      allow_abbrev=False,
  )
  parser.add_argument(
      "--smoke", action="store_true", help="small sizes; runs without a GPU too"
  )
  parser.add_argument(
      "--only",
      default=",".join(suite.CHECKS),
      help=f"checks to run, of {', '.join(suite.CHECKS)}",
  )
  parser.add_argument("--out", help="JSON file to write")
  parser.add_argument(
      "--timeout_secs",
      type=float,
      default=1200.0,
      help="how long each process may take",
  )
  for name, (kind, text) in _OPTIONS.items():
    parser.add_argument(f"--{name}", type=kind, help=text)
  args = parser.parse_args(argv)
  only = {"device", *args.only.split(",")}
  for name in only:
    if name not in suite.CHECKS:
      raise ValueError(base.suggest(name, suite.CHECKS, what="check"))
  args.names = [name for name in suite.CHECKS if name in only]
  given = {name: getattr(args, name) for name in _OPTIONS}
  args.settings = dataclasses.replace(
      settings_lib.SMOKE if args.smoke else settings_lib.Settings(),
      **{name: value for name, value in given.items() if value is not None},
  )
  return args


def main(argv: Sequence[str]) -> int:
  """Runs the checks; returns the exit code."""
  args = parse_args(argv)

  def save(found: Mapping[str, finding_lib.Finding]) -> None:
    if args.out:
      text = suite.to_json(args.settings, found)
      base.write_atomically(args.out, text + "\n")

  save({})  # Fails at once if it cannot be written.
  found = suite.run_checks(
      args.names,
      lambda name: suite.run_one(
          name, args.settings, timeout_secs=args.timeout_secs
      ),
      show=lambda line: print(line, flush=True),
      save=save,
  )
  if args.out:
    print(f"results: {args.out}")
  failed = [name for name in found if found[name].problems]
  print(f"FAILED: {', '.join(failed)}" if failed else "all checks passed")
  return 1 if failed else 0


if __name__ == "__main__":
  try:
    sys.exit(main(sys.argv[1:]))
  except (ValueError, OSError) as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)
  except KeyboardInterrupt:
    print("error: interrupted", file=sys.stderr)
    sys.exit(130)

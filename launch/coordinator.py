"""The coordination service of JAX in a process of its own.

python -m launch.coordinator --port=8476

It runs beside etcd, on the machine that must be up anyway; see
`bamboo_jax.runtime.coordination`. Prints one line when it is ready.
"""

from collections.abc import Sequence
import signal

from absl import flags

from launch import cli

_PORT = flags.DEFINE_integer("port", None, "Where to listen.", required=True)
_SLOTS = flags.DEFINE_integer(
    "slots", 64, "Number of slots: one more than nodes that may ever come."
)


def main(argv: Sequence[str]) -> None:
  """Serves until it is ended."""
  cli.check_no_arguments(argv)
  from bamboo_jax.runtime import coordination

  service = coordination.Service(_PORT.value, num_slots=_SLOTS.value)
  print(f"coordination service ready on port {_PORT.value}", flush=True)
  signal.pause()
  del service


if __name__ == "__main__":
  cli.run(main)

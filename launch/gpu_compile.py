r"""Compiles the programs of a config for a GPU, on a machine without one.

bamboo gpu_compile --config=gpt2:small --gpu=h100
bamboo gpu_compile --config=llama --gpu=a100 --config.node.mesh.tensor=2

Shows the memory of programs and stages, and XLA's count of operations. Needs the
extra `gpu_compile`, in an environment of its own; docs/guides/gpu.md.
"""

from absl import flags

from bamboo_jax.launch import cli, config_flag

_CONFIG = config_flag.define("default", "What to compile.")
_GPU = flags.DEFINE_string("gpu", "h100", "The GPU: l4, a100, h100, h200 or b200.")


def main() -> None:
  """Compiles the programs, and prints the report."""
  from bamboo_jax.gpu import report

  print(report.make_report(_CONFIG.value, _GPU.value))


if __name__ == "__main__":
  cli.run(main)

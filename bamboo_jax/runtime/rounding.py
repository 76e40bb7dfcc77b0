"""What affects rounding beside the config: versions, threads, flags."""

import hashlib
from importlib import metadata
import os
import pathlib
import platform
from typing import Any

import jax

from bamboo_jax.runtime import settings

_PACKAGES = ("flax", "jax", "jaxlib", "numpy", "optax")
_OTHERS = "environment.compiler"  # Key of the settings that older runs lack.
# Of /proc/cpuinfo; the latter three on ARM.
_CPU_FIELDS = (
    "vendor_id",
    "cpu family",
    "model",
    "model name",
    "stepping",
    "flags",
    "CPU implementer",
    "CPU part",
    "Features",
)
_SINGLE = (  # Those that have keys of their own.
    "jax_default_matmul_precision",
    "jax_disable_jit",
    "jax_numpy_dtype_promotion",
    "jax_optimization_level",
    "jax_random_seed_offset",
    "jax_threefry_partitionable",
    "NVIDIA_TF32_OVERRIDE",
)


def describe() -> dict[str, Any]:
  """Returns the settings that affect rounding, plain JSON values by name.

  Call once devices are set up.
  """
  device = jax.local_devices()[0]
  found: dict[str, Any] = {"platform": f"{device.platform} {device.device_kind}"}
  if device.platform == "cpu":  # See `devices`.
    kind = describe_processor()
    names = [l for l in kind.splitlines() if l.startswith("model name: ")]
    digest = hashlib.sha256(kind.encode()).hexdigest()[:8]
    found["processor"] = " ".join([*(l[12:] for l in names), digest])
    found["threads"] = count_threads()
  versions = {name: metadata.version(name) for name in _PACKAGES}
  found |= {f"versions.{name}": version for name, version in versions.items()}
  of_jax = jax.config.values  # Each version of JAX has its own.
  values = {k: of_jax[k] for k in settings.OF_JAX if k in of_jax}
  values = {k: getattr(v, "value", v) for k, v in values.items()}  # Of enums.
  values |= {name: os.environ.get(name) for name in settings.VARIABLES}
  found |= {f"environment.{name}": values.pop(name) for name in _SINGLE}
  found["environment.XLA_FLAGS"] = " ".join(settings.read_flags(os.environ))
  return found | {_OTHERS: values}


def describe_processor() -> str:
  try:
    cpu = parse_cpu(pathlib.Path("/proc/cpuinfo").read_text())
  except OSError:  # Not Linux.
    cpu = platform.processor()
  return f"{platform.machine()}\n{cpu}"


def count_threads() -> int:
  """Returns the number of threads of XLA:CPU in this process.

  It is `NPROC` or the number of cores, but at least the number of devices.
  """
  if hasattr(os, "sched_getaffinity"):
    num_cores = len(os.sched_getaffinity(0))
  else:
    num_cores = os.cpu_count() or 1
  num_cores = int(os.environ.get("NPROC", num_cores))
  return max(num_cores, jax.config.jax_num_cpu_devices)


def describe_host() -> str:
  """Returns all that machine code of this process for a CPU depends on."""
  return f"{describe_processor()}\n{count_threads()}"


def parse_cpu(text: str) -> str:
  """Returns the kind of processor from the text of /proc/cpuinfo."""
  first, _, _ = text.strip().partition("\n\n")
  lines = (line.partition(":") for line in first.splitlines())
  found = {name.strip(): value.strip() for name, _, value in lines}
  return "\n".join(f"{f}: {found[f]}" for f in _CPU_FIELDS if f in found)

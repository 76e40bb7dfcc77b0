"""What affects rounding beside the config: versions, threads, flags."""

import hashlib
from importlib import metadata
import os
from typing import Any

import jax

from bamboo_jax.runtime import settings
from bamboo_jax.runtime.executables import key

_PACKAGES = ("flax", "jax", "jaxlib", "numpy", "optax")
_OTHERS = "environment.compiler"  # Key of the settings that older runs lack.
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
    kind = key.describe_processor()
    names = [l for l in kind.splitlines() if l.startswith("model name: ")]
    digest = hashlib.sha256(kind.encode()).hexdigest()[:8]
    found["processor"] = " ".join([*(l[12:] for l in names), digest])
    found["threads"] = key.count_threads()
  versions = {name: metadata.version(name) for name in _PACKAGES}
  found |= {f"versions.{name}": version for name, version in versions.items()}
  of_jax = jax.config.values  # Each version of JAX has its own.
  values = {k: of_jax[k] for k in settings.OF_JAX if k in of_jax}
  values = {k: getattr(v, "value", v) for k, v in values.items()}  # Of enums.
  values |= {name: os.environ.get(name) for name in settings.VARIABLES}
  found |= {f"environment.{name}": values.pop(name) for name in _SINGLE}
  found["environment.XLA_FLAGS"] = " ".join(settings.read_flags(os.environ))
  return found | {_OTHERS: values}

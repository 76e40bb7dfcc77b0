"""What affects rounding beside the config: versions, threads, flags."""

import hashlib
from importlib import metadata
import os
from typing import Any

import jax

from bamboo_jax.runtime.executables import key

_PACKAGES = ("flax", "jax", "jaxlib", "numpy", "optax")
_SETTINGS = (  # Of JAX, by variables such as JAX_DISABLE_JIT, or by itself.
    "jax_default_matmul_precision",
    "jax_disable_jit",
    "jax_numpy_dtype_promotion",
    "jax_optimization_level",
    "jax_random_seed_offset",
    "jax_threefry_partitionable",
)
_VARIABLES = ("NVIDIA_TF32_OVERRIDE",)
_NUM_DEVICES = "--xla_force_host_platform_device_count"


def describe() -> dict[str, Any]:
  """Returns the settings that affect rounding, plain JSON values by name.

  Call once devices are set up.
  """
  device = jax.local_devices()[0]
  found: dict[str, Any] = {
      "platform": f"{device.platform} {device.device_kind}"
  }
  if device.platform == "cpu":  # See `devices`.
    kind = key.describe_processor()
    names = [l for l in kind.splitlines() if l.startswith("model name: ")]
    digest = hashlib.sha256(kind.encode()).hexdigest()[:8]
    found["processor"] = " ".join([*(l[12:] for l in names), digest])
    found["threads"] = key.count_threads()
  versions = {name: metadata.version(name) for name in _PACKAGES}
  found |= {f"versions.{name}": version for name, version in versions.items()}
  settings = {name: getattr(jax.config, name) for name in _SETTINGS}
  # Some are enums.
  settings = {k: getattr(v, "value", v) for k, v in settings.items()}
  settings |= {name: os.environ.get(name) for name in _VARIABLES}
  flags = sorted(set(os.environ.get("XLA_FLAGS", "").split()))
  flags = [flag for flag in flags if not flag.startswith(_NUM_DEVICES)]
  settings["XLA_FLAGS"] = " ".join(flags)
  return found | {f"environment.{k}": v for k, v in settings.items()}

"""Checks what a run needs of this environment, before nodes start."""

import jax

from bamboo_jax import config as config_lib
from bamboo_jax.metrics import logger as logger_lib


def check_environment(config: config_lib.Config) -> None:
  """Raises `ValueError` for a logger that is not there, or 64-bit floats."""
  if jax.config.jax_enable_x64:  # Arrays of the state would be float64.
    raise ValueError(
        "JAX_ENABLE_X64 is set, but parameters are float32: unset it."
    )
  logger_lib.parse_names(config.metrics.logger)

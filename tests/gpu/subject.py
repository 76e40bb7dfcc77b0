"""The model that is checked, and data for it."""

import jax
import numpy as np
import optax

from bamboo_jax.models import zoo
from bamboo_jax.runtime.stage import spec as spec_lib
from tests.gpu import settings as settings_lib


def make_whole(
    settings: settings_lib.Settings,
    *,
    dtype: str | None = None,
    num_blocks: int | None = None,
    attention: str | None = None,
) -> spec_lib.StageSpec:
  """Returns the whole model as one stage, with `attention` by that kernel.

  `dtype` and `num_blocks` take the place of those of settings and variant.
  """
  model = zoo.make_model(
      "gpt2",
      variant=settings.variant,
      num_blocks=num_blocks,
      vocab_size=settings.vocab_size,
      sequence_length=settings.sequence_length,
      dropout_rate=settings.dropout_rate,
      dtype=dtype or settings.dtype,
      attention=attention,
  )
  shapes = make_microbatch(settings, 0)
  return spec_lib.StageSpec(
      model=model,
      first=0,
      last=len(model.layers),
      batch={key: jax.ShapeDtypeStruct(array.shape, array.dtype) for key, array in shapes.items()},
      optimizer=optax.adamw(1e-4),
      remat=settings.remat,
      prng=settings.prng,
  )


def make_microbatch(settings: settings_lib.Settings, microbatch: int) -> dict[str, np.ndarray]:
  """Returns random tokens; many occur twice, so gradients of rows add up."""
  rng = np.random.default_rng(microbatch)
  shape = (settings.microbatch_size, settings.sequence_length + 1)
  tokens = rng.zipf(1.3, shape) % settings.vocab_size
  tokens = tokens.astype(np.int32)
  return {"inputs": tokens[:, :-1], "targets": tokens[:, 1:]}

"""What is checked: the model, its data, and how often to measure."""

import dataclasses

import numpy as np
import optax

from bamboo_jax.models import zoo
from bamboo_jax.runtime import accelerator
from bamboo_jax.runtime.stage import spec as spec_lib

# What commands that train set.
SAME_BITS = accelerator.add_determinism("")

# Seconds that a part may take; with `device`, all take 12 minutes at most.
LIMITS_SECS = {
    "device": 30.0,
    "kills": 180.0,
    "layouts": 90.0,
    "step": 110.0,
    "speed": 110.0,
    "determinism": 90.0,
    "offload": 40.0,
    "spmd": 70.0,
}
# Times as long with --smoke, on CPUs that may be busy.
SMOKE_PATIENCE = 5.0


@dataclasses.dataclass(frozen=True)
class Settings:
  """What all checks share; the defaults are what a check of a GPU should be.

  Attributes:
    variant: Size of GPT-2, see `models.text.gpt2`.
    prng: Generator of dropout that JAX knows.
    dtype: Of activations and products.
    remat: What is kept for the backward pass, see `runtime.stage.spec`.
    step_variant: Size of GPT-2 that is trained for whole steps.
    step_attention: Its kernel of attention.
    step_microbatches: Passes of a step, each of `microbatch_size`.
    speed_variants: Sizes of GPT-2 whose speed is measured, with commas.
    num_workers: Workers of a cluster on the device, a multiple of 2.
    num_kills: Kills in that cluster.
    num_repeats: How often each thing is timed.
    copy_mib: Size of the array that is moved to host memory and back.
    product_size: Width of the square matrices whose products run beside a copy.
    peak_tflops: Peak of the device for products in `dtype`, in TFLOP/s; None:
      from `accounting/gpus.csv`.
    needs_gpu: Whether it is a failure if there is no GPU.
  """

  variant: str = "medium"
  vocab_size: int = 50257
  sequence_length: int = 1024
  microbatch_size: int = 4
  dropout_rate: float = 0.1
  prng: str = "threefry2x32"
  dtype: str = "bfloat16"
  remat: str = "full"
  step_variant: str = "small"
  step_attention: str = "cudnn"
  step_microbatches: int = 8
  speed_variants: str = "small,medium"
  num_workers: int = 8
  num_kills: int = 50
  num_repeats: int = 9
  copy_mib: int = 512
  product_size: int = 8192
  peak_tflops: float | None = None
  needs_gpu: bool = True

  def __post_init__(self) -> None:
    for field in dataclasses.fields(self):
      value = getattr(self, field.name)
      if type(value) is int and value < 1:
        raise ValueError(f"{field.name} must be at least 1, got {value}.")
    if self.peak_tflops is not None and not self.peak_tflops > 0:
      raise ValueError(f"peak_tflops must be > 0, got {self.peak_tflops}.")


SMOKE = Settings(
    variant="tiny",
    vocab_size=64,
    sequence_length=32,
    microbatch_size=2,
    step_variant="tiny",
    step_attention="xla",
    step_microbatches=2,
    speed_variants="tiny",
    num_workers=4,
    num_kills=2,
    num_repeats=2,
    copy_mib=1,
    product_size=128,
    needs_gpu=False,
)


def make_whole(
    settings: Settings,
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
  return spec_lib.StageSpec(
      model,
      0,
      len(model.layers),
      model.batch_shapes(settings.microbatch_size),
      optimizer=optax.adamw(1e-4),
      remat=settings.remat,
      prng=settings.prng,
  )


def make_microbatch(settings: Settings, microbatch: int) -> dict[str, np.ndarray]:
  """Returns random tokens; many occur twice, so gradients of rows add up."""
  rng = np.random.default_rng(microbatch)
  shape = (settings.microbatch_size, settings.sequence_length + 1)
  tokens = rng.zipf(1.3, shape) % settings.vocab_size
  tokens = tokens.astype(np.int32)
  return {"inputs": tokens[:, :-1], "targets": tokens[:, 1:]}

"""Makes the writer of checkpoints from a config."""

from collections.abc import Callable
import functools
import pathlib

from bamboo_jax.checkpoint import identity as identity_lib
from bamboo_jax.checkpoint import writer as writer_lib
from bamboo_jax.exchange import weights
from bamboo_jax.train.setup import job as job_lib


def make_writer(
    job: job_lib.Job,
    *,
    directory: pathlib.Path,
    member: int,
    warn: Callable[[int, str], None],
    check_fence: Callable[[], None],
) -> writer_lib.Writer:
  """Returns the writer of a member; arguments and errors are as of `Writer`."""
  config, model = job.config, job.task.whole
  path = config.init_from
  read = functools.cache(lambda: weights.open_weights(path, model.model))
  return writer_lib.Writer(
      directory,
      keep=config.checkpoint.keep,
      every_steps=config.checkpoint.every_steps,
      member=member,
      model=model,
      identity=identity_lib.Identity(
          seed=config.seed,
          batch_size=job.plan.batch.batch_size,
          model=model.model.fingerprint,
          data=job.task.batches.source.fingerprint,
          rounding={
              "model.prng": model.prng,
              "pipeline.executor": config.pipeline.executor,
              "pipeline.head": job.is_program and config.pipeline.head,
              "pipeline.num_shares": job.plan.batch.num_shares,
              "pipeline.remat": model.remat,
              "pipeline.unit": model.unit,
          },
      ),
      warn=warn,
      check_fence=check_fence,
      initial=None if path is None else lambda layer: read()(layer),
  )

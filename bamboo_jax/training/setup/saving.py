"""Makes the writer of checkpoints from a config."""

from collections.abc import Callable, Mapping
import json
import os
import types
from typing import Any

from bamboo_jax import base, config as config_lib
from bamboo_jax.base import json as json_lib
from bamboo_jax.checkpoint import folder, identity as identity_lib, places, writer as writer_lib
from bamboo_jax.exchange import weights
from bamboo_jax.runtime import rounding
from bamboo_jax.training.record import workdir as workdir_lib
from bamboo_jax.training.setup import build, job as job_lib


def make_writer(
    job: job_lib.Job, given: job_lib.Environment, *, warn: Callable[[base.StepId, str], None]
) -> writer_lib.Writer:
  """Returns the checkpoint writer of a member; see `writer.Writer`."""
  config, model, where, cohort = job.config, job.task.whole, given.workdir, given.cohort
  is_program = build.is_program(config)
  return writer_lib.Writer(
      where.checkpoints,
      url=where.checkpoints_url,
      push=lambda is_writer: where.push(given.name, is_writer=is_writer),
      keep=config.checkpoint.keep,
      every_steps=config.checkpoint.every_steps,
      member=cohort.number,
      model=model,
      identity=_identify(
          config,
          job.task,
          rounding={
              **rounding.describe(),
              "code": base.find_code(config.to_json()),
              "model.prng": model.prng,
              "node.deterministic": config.node.deterministic,
              "node.mesh.data": config.node.mesh.data,
              "node.mesh.tensor": config.node.mesh.tensor,
              "pipeline.executor": config.pipeline.executor,
              "pipeline.microbatch_size": job.plan.batch.microbatch_size,
              "pipeline.num_shares": job.plan.batch.num_shares,
              "pipeline.remat": model.remat,
              # Rounding of one program for all stages depends on the cuts.
              "partition": list(job.plan.partition.bounds) if is_program else None,
          },
      ),
      warn=warn,
      check_fence=lambda: given.check_fence(cohort.view),
      weights=weights.open_later(config.init_from, model.model),
  )


def check_same(config: config_lib.Config, task: build.Task, where: workdir_lib.Workdir) -> None:
  """Raises `base.CheckpointError` if the folder or bucket is of another run.

  Looks at its newest checkpoint that can be read, and warns of those that cannot; workers
  judge what is in them.
  """
  place = places.open_place(where.checkpoints.absolute(), where.checkpoints_url)
  is_there = where.url or where.checkpoints.is_dir()
  for name in reversed(place.find() if is_there else []):
    try:
      meta = place.read(name).meta
    except (OSError, ValueError) as error:
      folder.warn_once(f"{error}", os.getpid())
      continue
    _identify(config, task).check(meta, step=name.step, where=place.where)
    return


def _identify(
    config: config_lib.Config,
    task: build.Task,
    rounding: Mapping[str, Any] = types.MappingProxyType({}),
) -> identity_lib.RunIdentity:
  plain = config.to_json()
  del plain["name"], plain["study"]  # They decide on nothing.
  # A length that is None in the config follows `num_steps`.
  plain["optimizer"]["schedule_options"] = json.loads(
      json.dumps(dict(task.schedule.options), default=dict)
  )
  return identity_lib.RunIdentity(
      seed=config.seed,
      batch_size=task.batches.batch_size,
      model=task.whole.model.fingerprint,
      data=task.batches.source.fingerprint,
      rounding=dict(rounding),
      config=json_lib.flatten(plain),
  )

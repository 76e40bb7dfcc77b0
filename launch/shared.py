"""Flags that several commands have, and what follows from them."""

from collections.abc import Callable
import dataclasses
import functools
import pathlib
from typing import Any

from absl import flags

from bamboo_jax import base, config as config_lib
from bamboo_jax.cli import flagset
from bamboo_jax.experiments import sweep
from bamboo_jax.metrics import plots
from bamboo_jax.training.record import workdir as workdir_lib


def workdir(help_text: str = "Where checkpoints and metrics go.", **use: Any) -> Any:
  """Declares `--workdir`, which is needed."""
  return flagset.flag(None, help_text, is_needed=True, **use)


def run_workdir() -> Any:
  """Declares `--workdir` of a command that trains."""
  return workdir(
      "Where checkpoints and metrics go: a folder, or s3://BUCKET/RUN, gs:// or az://.",
      takes_bucket=True,
  )


def explain_resume() -> str:
  """Returns the hint after an interrupt: how to resume the run in `--workdir`."""
  place = flags.FLAGS.workdir if flags.FLAGS.is_parsed() else ""
  if base.is_bucket(place):
    return f"the same command goes on from the last checkpoint in {place}, if there is one"
  saved = workdir_lib.find_saved(place) if place else 0
  if saved:
    return f"the same command goes on from step {saved}, which is saved"
  return "nothing is saved: the same command starts from the beginning"


def device_memory_fraction() -> Any:
  """Declares `--device_memory_fraction`."""
  return flagset.flag(
      None, "Part of the memory of a GPU that each worker takes; several may share it."
  )


def program_cache(default: str = "bamboo_jax/programs in the cache folder of the user") -> Any:
  """Declares where compiled programs are kept."""
  return flagset.flag(
      None,
      f"Folder of compiled programs, which runs and processes share; by default {default}. "
      "Empty: none.",
  )


def find_program_cache(folder: str | None) -> str:
  """Returns the folder that the flag names, or the user's default one."""
  return base.find_cache("programs") if folder is None else folder


def use_program_cache(folder: str | None) -> Any:
  """Makes this process load and save programs in the folder of the flag.

  Returns the `runtime.program_store.ProgramStore` of this process.
  """
  from bamboo_jax.runtime import program_store  # Imports JAX.

  return program_store.use(find_program_cache(folder))


def figure_format(**use: Any) -> Any:
  """Declares `--figure_format`."""
  return flagset.flag(
      ("png",), "Formats of figures, such as png,pdf.", choices=plots.FORMATS, **use
  )


def find_format_change(formats: tuple[str, ...], config: config_lib.Config) -> dict[str, str]:
  """Returns the option of the config that `--figure_format` sets; {} if not given."""
  if not flagset.is_given("figure_format"):
    return {}
  if not config.metrics.plots:
    flagset.refuse(["figure_format"], "with config.metrics.plots=False")
  return {"metrics.figure_format": ",".join(formats)}


def formats_of(formats: tuple[str, ...], path: str | None) -> tuple[str, ...]:
  """Returns the formats of a figure `--out=path`: the flag's, or its suffix.

  Raises `ValueError` if the suffix is no format.
  """
  if path is None:
    return formats
  suffix = pathlib.Path(path).suffix[1:]
  if suffix not in plots.FORMATS:
    endings = " or ".join(f".{name}" for name in plots.FORMATS)
    raise ValueError(f"--out must end in {endings}, got {path!r}.")
  return formats if flagset.is_given("figure_format") else (suffix,)


@dataclasses.dataclass(frozen=True)
class PageFlags:
  """A page on the run."""

  page: bool = flagset.flag(False, "Serve a page on the run, to this machine only.")
  page_port: int | None = flagset.flag(
      None, "Port of that page; by default any free one.", least=0, most=65535
  )

  @property
  def port(self) -> int | None:
    """The port, 0 for any free one; None without a page."""
    return 0 if self.page and self.page_port is None else self.page_port


@dataclasses.dataclass(frozen=True)
class JobFlags:
  """Where independent jobs run; see docs/guides/sweeps.md."""

  num_processes: int | None = flagset.flag(
      None, "Jobs at once; by default one for each core.", least=1
  )
  dask: str | None = flagset.flag(
      None, "A Dask scheduler, tcp://host:8786; its workers run the jobs."
  )
  shard: str | None = flagset.flag(
      None, "Run only this part of the jobs, such as 2/4.", excludes="merge", needs="workdir"
  )
  merge: int | None = flagset.flag(
      None, "Number of shards to merge; no job is run.", least=1, needs="workdir"
  )

  def read(self, workdir: str | None, *, alone: str = "") -> sweep.Where:
    """Returns where jobs run; results are kept below the workdir, if any.

    `alone`: why jobs must run one after the other on this machine, "" if not.
    """
    if alone:
      flagset.refuse(["num_processes", "dask"], alone)
    if self.dask:
      flagset.refuse(["num_processes"], "with --dask")
    return sweep.Where(
        num_processes=1 if alone else self.num_processes,
        dask=self.dask,
        shard=sweep.parse_shard(self.shard) if self.shard else None,
        num_merged=self.merge,
        folder=pathlib.Path(workdir, "jobs") if workdir else None,
    )


def ending(main: Callable[[Any], None]) -> Callable[[Any], None]:
  """Returns `main` that prints a line and ends when a shard is done."""

  @functools.wraps(main)
  def run(given: Any) -> None:
    try:
      main(given)
    except sweep.ShardEnd as end:
      print(end)

  return run

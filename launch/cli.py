"""The start of all commands of this folder, and flags that several have.

A command is a module with a dataclass of flags and `main(flags)`.
"""

from collections.abc import Callable, Mapping, Sequence
import dataclasses
import functools
import os
import pathlib
import sys
import typing
from typing import Any

from absl import flags

from bamboo_jax import base, config as config_lib
from bamboo_jax.base import packaged
from bamboo_jax.cli import command, config_flag, flagset
from bamboo_jax.cli.flagset import flag
from bamboo_jax.experiments import sweep
from bamboo_jax.metrics import plots, progress
from bamboo_jax.recovery import policies
from bamboo_jax.training.record import workdir as workdir_lib
from bamboo_jax.training.setup import accept

hearing = command.hearing
_CONFIG_HELP = (
    " A name that `bamboo --help` lists, or a file; --config.NAME=VALUE changes an option, and "
    "--print_config shows the config with what differs from the default, and ends."
)


def config(default: str, help_text: str) -> Any:
  """Declares the flag `--config`, a `config.Config`."""
  return flag(default, help_text + _CONFIG_HELP)


def workdir() -> Any:
  """Declares `--workdir` of a command that trains."""
  return flag(
      None,
      "Where checkpoints and metrics go: a folder, or s3://BUCKET/RUN, gs:// or az://.",
      is_needed=True,
      takes_bucket=True,
  )


def device_memory_fraction() -> Any:
  """Declares `--device_memory_fraction`."""
  return flag(None, "Part of the memory of a GPU that each worker takes; several may share it.")


def program_cache(default: str = "bamboo_jax/programs in the cache folder of the user") -> Any:
  """Declares where compiled programs are kept."""
  return flag(
      None,
      f"Folder of compiled programs, which runs and processes share; by default {default}. "
      "Empty: none.",
  )


def find_program_cache(folder: str | None) -> str:
  """Returns the folder that the flag names, or the user's default one."""
  return base.find_cache("programs") if folder is None else folder


def figure_format(**use: Any) -> Any:
  """Declares `--figure_format`."""
  return flag(("png",), "Formats of figures, such as png,pdf.", choices=plots.FORMATS, **use)


def find_format_change(formats: tuple[str, ...], config: config_lib.Config) -> dict[str, str]:
  """Returns the option of the config that `--figure_format` sets; {} if not given."""
  if not flagset.is_given("figure_format"):
    return {}
  if not config.metrics.plots:
    flagset.refuse(["figure_format"], "with config.metrics.plots=False")
  return {"metrics.figure_format": ",".join(formats)}


@dataclasses.dataclass(frozen=True)
class PageFlags:
  """A page on the run."""

  page: bool = flag(False, "Serve a page on the run, to this machine only.")
  page_port: int | None = flag(
      None, "Port of that page; by default any free one.", least=0, most=65535
  )

  @property
  def port(self) -> int | None:
    """The port, 0 for any free one; None without a page."""
    return 0 if self.page and self.page_port is None else self.page_port


@dataclasses.dataclass(frozen=True)
class JobFlags:
  """Where independent jobs run; see docs/guides/sweeps.md."""

  num_processes: int | None = flag(None, "Jobs at once; by default one for each core.", least=1)
  dask: str | None = flag(None, "A Dask scheduler, tcp://host:8786; its workers run the jobs.")
  shard: str | None = flag(
      None, "Run only this part of the jobs, such as 2/4.", excludes="merge", needs="workdir"
  )
  merge: int | None = flag(
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


def explain_resume() -> str:
  """Returns the hint after an interrupt: how to resume the run in `--workdir`."""
  places: Any = flags.FLAGS["workdir"].value
  place = base.find_place(places[-1]) if places else ""
  if base.is_bucket(place):
    return f"the same command goes on from the last checkpoint in {place}, if there is one"
  saved = workdir_lib.find_saved(place) if place else 0
  if saved:
    return f"the same command goes on from step {saved}, which is saved"
  return "nothing is saved: the same command starts from the beginning"


def run(
    main: Callable[[Any], None],
    *,
    if_interrupted: Callable[[], str] = lambda: "",
    is_node: bool = False,
    is_study: bool = False,
) -> None:
  """Runs `main` as the command of this process, and exits.

  Its argument is annotated with the dataclass of the flags. If it `is_study`, the run of
  the config is only simulated. Errors and the other arguments are as in `command.run`.
  """
  kind = next(hint for name, hint in typing.get_type_hints(main).items() if name != "return")

  def start(argv: Sequence[str]) -> None:
    if config_flag.PRINT in flags.FLAGS and flags.FLAGS[config_flag.PRINT].value:
      given: Any = flags.FLAGS[config_flag.NAME].value
      print(_render(given))
    else:
      try:
        main(flagset.read(kind, argv[1:]))
      except sweep.ShardEnd as end:
        print(end)

  flagset.define(kind)
  doc = (sys.modules["__main__"].__doc__ or "").strip()
  command.run(
      start,
      parse=functools.partial(parse_flags, is_study=is_study),
      help_text=packaged.locate_pages(f"{doc}\n\n{flagset.render(kind)}\n"),
      if_interrupted=if_interrupted,
      is_node=is_node,
  )


def parse_flags(argv: Sequence[str], *, is_study: bool = False) -> list[str]:
  """Returns the arguments that are not flags; accepts the config, which is then `--config`."""
  try:
    if config_flag.NAME not in flags.FLAGS:
      return flags.FLAGS(list(argv))
    with progress.waiting("reading the config"):  # Its file may import much.
      given, rest = config_flag.parse(argv)
    accepted = accept.accept(given, is_study=is_study)
    refuse_overwritten(accepted.recovery.policy)
    flags.FLAGS[config_flag.NAME].value = accepted
    return rest
  except flags.IllegalFlagValueError as error:  # Of a flag of absl.
    command.fail(config_flag.explain_flag(error), 2)
  except (flags.Error, ValueError) as error:
    command.fail(str(error), 2)
  except Exception as error:  # The code of a config may raise anything.
    command.fail(config_flag.explain(error), 2)


def refuse_overwritten(policy: str | None, swept: Mapping[str, Sequence[Any]] = {}) -> None:
  """Raises `ValueError` if the command line sets an option otherwise than the config's policy.

  `swept` are the values of options that are swept beside it.
  """
  if policy is not None:
    own, when = policies.find(policy), f"with config.recovery.policy={policy!r}, which sets it"
    # The config may say how a policy has replicas.
    differs = lambda k, v: own.get(k, v) != v and k != "redundancy.mode"
    flagset.refuse_keys([k for k, v in config_flag.given().values.items() if differs(k, v)], when)
    texts = [f"--sweep={k}" for k, values in swept.items() for v in values if differs(k, v)]
    flagset.refuse_texts(texts, when)


def _render(config: config_lib.Config) -> str:
  """Returns assignments for a config file, a line each, with other defaults."""
  lines = []
  for option in config_lib.list_options(config_lib.Config):
    if option.default:
      find = functools.partial(functools.reduce, getattr, option.name.split("."))
      value = find(config)
      default = "" if value == find(config_lib.Config()) else f"  # default: {option.default}"
      lines.append(f"config.{option.name} = {value!r}{default}")
  return "\n".join(lines)


def check_folder(path: str) -> None:
  """Raises `ValueError` if the folder of the file `path` does not exist."""
  folder = os.path.dirname(path) or "."
  if not os.path.isdir(folder) or os.path.isdir(path):
    raise ValueError(f"Cannot write {path!r}: its folder does not exist.")

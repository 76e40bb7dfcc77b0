"""The file with the address of the etcd of a run: `endpoint.json`.

`bamboo store` and `bamboo cluster` write it into the workdir, and the latter
removes it at the end; the secret is in a separate file beside it, readable by
its owner only.
"""

import dataclasses
import json
import pathlib

from bamboo_jax import base
from bamboo_jax.base import json as json_lib

LEAVE_SECS = 10.0  # For agents to end once the summary is written.
_NAME, _SECRET = "endpoint.json", "secret"


@dataclasses.dataclass(frozen=True)
class RunAddress:
  """The address of a run.

  Attributes:
    etcd: As `--etcd` takes it.
  """

  etcd: str
  run: str


def write(workdir: pathlib.Path, endpoint: RunAddress) -> None:
  """Writes `endpoint.json` in `workdir`."""
  text = json.dumps(dataclasses.asdict(endpoint))
  base.write_atomically(workdir / _NAME, text + "\n")


def remove(workdir: pathlib.Path) -> None:
  """Removes `endpoint.json` from `workdir`, if it exists."""
  (workdir / _NAME).unlink(missing_ok=True)


def read(workdir: pathlib.Path) -> RunAddress:
  """Returns the address; `ValueError` if no cluster runs in `workdir`."""
  path = workdir / _NAME
  try:
    found = json.loads(path.read_text())
    return json_lib.from_plain(RunAddress, found)
  except FileNotFoundError:
    if (workdir / "summary.json").exists():
      raise ValueError(
          f"The run in {workdir} has ended: see summary.json there, or make a "
          f"page of it with `bamboo report {workdir}`."
      ) from None
    raise ValueError(
        f"No cluster runs in {workdir}: there is no {_NAME}, which "
        "bamboo cluster and bamboo store write. Start one of these, or name "
        "an etcd with --etcd."
    ) from None
  except ValueError as error:
    raise ValueError(f"{path} is damaged: {error}") from error


def find_former_summary(workdir: pathlib.Path, *, now_secs: float) -> bytes | None:
  """Returns the summary of the run before the one that a store begins; None without.

  A summary ends the run of a store, after `LEAVE_SECS`. A store that was killed
  meanwhile and starts again finds it newer than its own `endpoint.json`, so it
  is of this run. `now_secs` is in seconds since 1970.
  """
  summary, endpoint = workdir / "summary.json", workdir / _NAME
  if not summary.exists():
    return None
  written_secs = summary.stat().st_mtime
  is_recent = now_secs - LEAVE_SECS < written_secs
  if is_recent and endpoint.exists() and endpoint.stat().st_mtime < written_secs:
    return None
  return summary.read_bytes()


def secret_file(workdir: pathlib.Path) -> pathlib.Path:
  """Returns the path of the secret of the run."""
  return workdir / _SECRET

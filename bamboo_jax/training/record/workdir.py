"""The files of a run."""

import pathlib

from bamboo_jax import base
from bamboo_jax.checkpoint import manifest


class Workdir:
  """The folder of a run, `root`.

  Attributes:
    root: The folder.
    config: The config, as JSON.
    data: Manifest of the training data.
    metrics: The log: one JSON object per line, for each step and event.
    summary: Hashes, last loss, recoveries and costs.
    control: Hash of the last step without a share, see `training.control`.
    trace: Planned and measured steps, for Perfetto.
    rows: The folder of the last steps of all members, see `metrics.rows`.
    profiles: The folder of traces for XProf, by member.
    checkpoints: The folder of the checkpoints, by step.
    loss_plot: Losses over steps.
    schedule_plot: The last step, as planned and as measured.
  """

  def __init__(self, root: pathlib.Path) -> None:
    self.root = root
    self.config = root / "config.json"
    self.data = root / "data.json"
    self.metrics = root / "metrics.jsonl"
    self.summary = root / "summary.json"
    self.control = root / "control.json"
    self.trace = root / "trace.json"
    self.rows = root / "rows"
    self.profiles = root / "profile"
    self.checkpoints = root / "checkpoints"
    self.loss_plot = root / "loss.png"
    self.schedule_plot = root / "schedule.png"

  @classmethod
  def at(cls, path: str) -> "Workdir":
    """Returns the workdir at a path, without making it.

    Raises `ValueError` if the path is not that of a directory, or a URL.
    """
    base.refuse_url("workdir", path)
    root = pathlib.Path(path)
    if not path or (root.exists() and not root.is_dir()):
      raise ValueError(f"workdir={path!r} is not a directory.")
    return cls(root)


def find_saved(path: str) -> int:
  """Returns the step of the newest checkpoint in a workdir; 0 if none is there.

  Looks at names only, so it may be called in a signal handler.
  """
  folder = Workdir(pathlib.Path(path)).checkpoints
  names = manifest.find(folder) if folder.is_dir() else []
  return names[-1].step if names else 0

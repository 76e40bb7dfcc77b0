"""The files of a run."""

import dataclasses
import pathlib


@dataclasses.dataclass(frozen=True)
class Workdir:
  """The folder of a run, `root`.

  Attributes:
    root: The folder.
  """

  root: pathlib.Path

  @classmethod
  def at(cls, path: str) -> "Workdir":
    """Returns the workdir at a path, or raises `ValueError`; makes nothing."""
    root = pathlib.Path(path)
    if not path or (root.exists() and not root.is_dir()):
      raise ValueError(f"workdir={path!r} is not a directory.")
    return cls(root)

  @property
  def config(self) -> pathlib.Path:
    """The config, as JSON."""
    return self.root / "config.json"

  @property
  def data(self) -> pathlib.Path:
    """Manifest of the text that is trained on."""
    return self.root / "data.json"

  @property
  def metrics(self) -> pathlib.Path:
    """The log: one JSON object per line, for each step and event."""
    return self.root / "metrics.jsonl"

  @property
  def summary(self) -> pathlib.Path:
    """Hashes, last loss, recoveries and costs."""
    return self.root / "summary.json"

  @property
  def trace(self) -> pathlib.Path:
    """Planned and measured steps, for Perfetto."""
    return self.root / "trace.json"

  @property
  def checkpoints(self) -> pathlib.Path:
    """The folder of the checkpoints, by step."""
    return self.root / "checkpoints"

  @property
  def events(self) -> pathlib.Path:
    """The folder that TensorBoard reads."""
    return self.root / "events"

  @property
  def loss_plot(self) -> pathlib.Path:
    """Losses over steps."""
    return self.root / "loss.png"

  @property
  def schedule_plot(self) -> pathlib.Path:
    """The last step, as planned and as measured."""
    return self.root / "schedule.png"

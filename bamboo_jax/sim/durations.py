"""How long it takes to change what nodes do."""

import dataclasses


@dataclasses.dataclass(frozen=True, kw_only=True)
class Durations:
  """Times in seconds; what is copied between nodes comes on top.

  Attributes:
    boot_secs: From the arrival of a node until it can train.
    detect_secs: Until a loss without notice is known and decided upon.
    repair_secs: Pause when a spare takes a place.
    reconfigure_secs: Pause when new pipelines are made.
    restart_secs: To end and start all processes.
    load_secs: To load a checkpoint after that.
    save_secs: To save one, while training goes on.
    stall_secs: Pause to take the state for it.
    save_every_secs: Between two saves; 0: there are none.
  """

  boot_secs: float = 45.0
  detect_secs: float = 1.0
  repair_secs: float = 2.0
  reconfigure_secs: float = 10.0
  restart_secs: float = 40.0
  load_secs: float = 20.0
  save_secs: float = 30.0
  stall_secs: float = 1.0
  save_every_secs: float = 600.0

  def __post_init__(self) -> None:
    for name, value in dataclasses.asdict(self).items():
      if not value >= 0:
        raise ValueError(f"{name} must be from 0, got {value}.")

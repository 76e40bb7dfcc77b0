"""Which runs an ablation consists of."""

from collections.abc import Mapping, Sequence
import dataclasses
import itertools
import random
import re

Setting = tuple[tuple[str, str], ...]  # Fields and values, in order.


@dataclasses.dataclass(frozen=True)
class Trial:
  """One run of a setting.

  Attributes:
    setting: Fields of the config and their values, as the user wrote them.
    repeat: Which repeat of the setting, from 0.
  """

  setting: Setting
  repeat: int

  @property
  def folder(self) -> str:
    """Where the run goes, below the folder of the ablation."""
    return f"{describe(self.setting)}/{self.repeat}"


def describe(setting: Setting) -> str:
  """Returns a name of a setting that can be that of a folder."""
  name = ",".join(f"{field}={value}" for field, value in setting)
  return re.sub(r"[^\w.,=+-]", "_", name)


def parse_sweep(text: str) -> tuple[str, tuple[str, ...]]:
  """Returns field and values of a sweep such as `redundancy.mode=none,lazy`.

  Commas inside brackets do not separate values.

  Raises:
    ValueError: There is no field, no value, or one value twice.
  """
  field, equals, rest = text.partition("=")
  values = tuple(_split(rest))
  if not field or not equals or "" in values:
    raise ValueError(
        f"--sweep={text} must be a field of the config and its values, such as "
        "redundancy.mode=none,lazy."
    )
  if len(set(values)) < len(values):
    raise ValueError(f"--sweep={text} names a value twice.")
  return field, values


def plan_trials(
    sweeps: Mapping[str, Sequence[str]], *, repeats: int
) -> list[Trial]:
  """Returns all runs, repeat by repeat.

  Settings are all combinations of values. Each repeat has another order, so
  that a machine that slows down in the course of time hits all settings alike.
  """
  settings = [
      tuple(zip(sweeps, values, strict=True))
      for values in itertools.product(*sweeps.values())
  ]
  rng = random.Random(0)
  return [
      Trial(setting, repeat)
      for repeat in range(repeats)
      for setting in rng.sample(settings, len(settings))
  ]


def _split(text: str) -> list[str]:
  parts, depth = [""], 0
  for char in text:
    depth += (char in "([{") - (char in ")]}")
    if char == "," and depth == 0:
      parts.append("")
    else:
      parts[-1] += char
  return parts

"""What a check found out, as it travels between processes."""

from collections.abc import Collection, Mapping, Sequence
import dataclasses
import json
from typing import Any


@dataclasses.dataclass(frozen=True)
class Finding:
  """The result of one check.

  Attributes:
    lines: What people read.
    values: What programs read, plain JSON values.
    problems: What is wrong, a line each; the check has failed if there are any.
  """

  lines: Sequence[str] = ()
  values: Mapping[str, Any] = dataclasses.field(default_factory=dict)
  problems: Sequence[str] = ()

  def to_json(self) -> str:
    """Returns the finding as text that `from_json` takes."""
    return json.dumps(dataclasses.asdict(self))

  @classmethod
  def from_json(cls, text: str) -> "Finding":
    """Returns the finding that `to_json` made `text` of."""
    return cls(**json.loads(text))


def align(rows: Sequence[Sequence[str]], *, left: Collection[int]) -> list[str]:
  """Returns a line per row, flush right except for the columns in `left`."""
  widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
  return [
      "  ".join(
          cell.ljust(width) if i in left else cell.rjust(width)
          for i, (cell, width) in enumerate(zip(row, widths, strict=True))
      ).rstrip()
      for row in rows
  ]


def describe(error: BaseException) -> str:
  """Returns one line, not too long, that tells what went wrong."""
  text = " ".join(str(error).split())
  return f"{type(error).__name__}: {text}"[:400]

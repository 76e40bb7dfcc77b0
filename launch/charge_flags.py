"""Flags of commands that price a run: they replace entries of `config.cost`."""

from absl import flags

_CHARGES = tuple(
    flags.DEFINE_string(name, None, help_text)
    for name, help_text in (
        ("instance", "Charge nodes as these."),
        ("market", "Pay spot or on_demand prices."),
        ("prices", "File of prices."),
        ("region", "Take the price of this region."),
        ("date", "Take the price of this date."),
    )
)


def given() -> dict[str, str | None]:
  """Returns the entries of `config.cost` that are given, and what these reset."""
  found: dict[str, str | None] = {f.name: f.value for f in _CHARGES if f.value is not None}
  if "instance" in found or "prices" in found:  # Another node, or another list.
    for name in ("region", "date"):
      found.setdefault(name, None)
  return found

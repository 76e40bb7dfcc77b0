"""The nodes of a run, as cards in a grid of stages; pure."""

from collections.abc import Iterable, Mapping, Sequence
import dataclasses
from typing import Any

from bamboo_jax import base
from bamboo_jax.cluster import views
from bamboo_jax.recovery import layout as layout_lib
from bamboo_jax.report.live import words

_MOST_GONE = 6  # Without a place in the grid: the last ones.


@dataclasses.dataclass
class Card:
  """A node.

  Attributes:
    row: "pipeline 0", or "spares", "joining", "gone".
    column: Stage; None outside of a pipeline.
    role: "owner", "spare", "leaving", "joining" or "gone".
    places: Stages that it owns, as `pipeline/stage`.
    shadows: Stages of which it has a replica.
    if_lost: Rung that would be taken if it died; None if not known.
    text: For people.
  """

  name: str
  zone: str | None
  role: str
  places: Sequence[str] = dataclasses.field(default_factory=list)
  shadows: Sequence[str] = dataclasses.field(default_factory=list)
  if_lost: str | None = None
  row: str = ""
  column: int | None = None
  text: str = ""


def find_living(
    layout: layout_lib.Layout,
    view: views.View,
    joining: Iterable[views.Member],
    rungs: Mapping[frozenset[base.NodeId], str],
) -> list[Card]:
  """Returns the nodes of a view, and those that are about to join."""
  places: dict[int, list[str]] = {}
  shadows: dict[int, list[str]] = {}
  for number, pipeline in enumerate(layout.pipelines):
    for stage, owner in enumerate(pipeline.roles.owners):
      if stage not in pipeline.vacant:
        places.setdefault(owner, []).append(f"{number}/{stage}")
    for stage, shadow in pipeline.roles.shadows.items():
      shadows.setdefault(shadow, []).append(f"{number}/{stage}")
  found = []
  for member in sorted({*joining, *view.members}):
    number = member.number
    role = "owner" if number in places else "spare"
    if number not in view.numbers:
      role = "joining"
    elif number in view.leaving:
      role = "leaving"
    found.append(
        Card(
            member.name,
            member.zone,
            role,
            places.get(number, []),
            shadows.get(number, []),
            rungs.get(frozenset({number})),
        )
    )
  return found


def find_dead(
    recoveries: Iterable[Mapping[str, Any]],
    met: Mapping[base.NodeId, views.Member],
    living: Iterable[Card],
    last_places: Mapping[base.NodeId, Sequence[str]],
    gone: Iterable[base.NodeId],
) -> list[Card]:
  """Returns the nodes that have died, the last first.

  Args:
    recoveries: In order.
    met: All members that were ever seen.
    living: Who has come again under its old name is not dead.
    last_places: The places of nodes when they last had some, by number.
    gone: Members that are lost, if only lately.
  """
  dead: dict[str, Card] = {}
  for number in gone:
    places = last_places.get(number, [])
    dead[met[number].name] = Card(met[number].name, None, "gone", places, text="gone")
  for recovery in recoveries:
    for number, name in zip(recovery["nodes"], recovery["names"], strict=True):
      places = last_places.get(number, recovery["victims"] if len(recovery["nodes"]) == 1 else [])
      said = words.describe_death(recovery).partition("; ")[2]
      text = f"died in step {recovery['step']}; {said}"
      dead.pop(name, None)
      dead[name] = Card(name, None, "gone", places, text=text)
  zones = {member.name: member.zone for member in met.values()}
  names = {card.name for card in living}
  found = [card for card in dead.values() if card.name not in names]
  return [dataclasses.replace(card, zone=zones.get(card.name)) for card in reversed(found)]


def arrange(living: Iterable[Card], dead: Iterable[Card]) -> list[dict[str, Any]]:
  """Returns cards in the order of the grid, each with its row and column.

  A node stands at its first place; a dead one keeps its place until another
  node stands there.
  """
  found: list[tuple[Any, Card]] = []
  taken: set[str] = set()
  num_gone = 0
  rows = {"owner": "spares", "leaving": "spares", "spare": "spares", "joining": "joining"}
  for card in [*living, *dead]:
    place = next((p for p in card.places if p not in taken), None)
    if card.role == "gone" and place is None:
      num_gone += 1
      if num_gone > _MOST_GONE:
        continue
    key = (1, ("spares", "joining", "gone").index(rows.get(card.role, "gone")))
    row, column = rows.get(card.role, "gone"), None
    if place is not None:
      taken.add(place)
      pipeline, stage = map(int, place.split("/"))
      row, column, key = f"pipeline {pipeline}", stage, (0, pipeline, stage)
    text = card.text
    if not text and card.if_lost:
      text = f"if it dies: {words.IF_LOST[card.if_lost]}"
    found.append((key, dataclasses.replace(card, row=row, column=column, text=text)))
  return [dataclasses.asdict(card) for _, card in sorted(found, key=lambda entry: entry[0])]

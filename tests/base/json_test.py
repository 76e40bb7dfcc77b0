"""Tests of values as JSON."""

from collections.abc import Mapping
import dataclasses
import json
from typing import Any, NamedTuple

from absl.testing import parameterized

from bamboo_jax import base
from bamboo_jax.base import json as json_lib, types


class Pair(NamedTuple):
  name: str
  at: types.Place


@dataclasses.dataclass(frozen=True)
class Leaf:
  count: int
  secs: float = 0.5

  def __post_init__(self):
    if self.count < 0:
      raise ValueError(f"count must not be negative, got {self.count}.")


@dataclasses.dataclass(frozen=True)
class Tree:
  leaves: tuple[Leaf, ...]
  edge: tuple[base.ViewId, str]
  first: "Leaf | None"
  by_node: Mapping[base.NodeId, tuple[str, ...]]
  by_name: dict[str, Leaf]
  held: frozenset[tuple[int, base.StageId]]
  pairs: list[Pair]
  label: base.StepId | str
  since: float | base.StepId | None
  meta: Any


_TREE = Tree(
    leaves=(Leaf(1), Leaf(2, 0.25)),
    edge=(3, "x"),
    first=None,
    by_node={7: ("a", "b")},
    by_name={"l": Leaf(4)},
    held=frozenset({(2, 1), (1, 2)}),
    pairs=[Pair("p", types.Place(1, 0))],
    label="s",
    since=base.StepId(3),
    meta={"free": [1, None]},
)
_PLAIN = {
    "leaves": [{"count": 1, "secs": 0.5}, {"count": 2, "secs": 0.25}],
    "edge": [3, "x"],
    "first": None,
    "by_node": {"7": ["a", "b"]},
    "by_name": {"l": {"count": 4, "secs": 0.5}},
    "held": [[1, 2], [2, 1]],
    "pairs": [["p", [1, 0]]],
    "label": "s",
    "since": 3,
    "meta": {"free": [1, None]},
}


class JsonTest(parameterized.TestCase):

  def test_plain_form(self):
    self.assertEqual(json_lib.to_plain(_TREE), _PLAIN)
    got = json_lib.from_plain(Tree, json.loads(json.dumps(_PLAIN)))
    self.assertEqual(got, _TREE)
    self.assertIs(type(got.since), int)

  def test_defaults_may_be_missing_and_whole_numbers_are_floats(self):
    got = json_lib.from_plain(Leaf, {"count": 1, "secs": 2})
    self.assertEqual(got, Leaf(1, 2.0))
    self.assertIs(type(got.secs), float)

  @parameterized.parameters(
      ("leaves", [{"count": 1}, {"count": "x"}], "[1].count: Expected `int`, got `str`: 'x'."),
      ("leaves", [{"count": -1}], "[0]: count must not be negative, got -1."),
      ("leaves", [{"count": 1, "ses": 2}], "[0]: Unknown field 'ses'; did you mean 'secs'?"),
      ("edge", [1], ": Expected `array` of length 2, got 1: [1]."),
      ("by_node", {"a": []}, ": Expected `int`, got `str`."),
      ("by_name", {"l": {"count": 1, "ses": 2}}, "['l']: Unknown field 'ses'; did you mean"),
      ("pairs", [["p", [0, "1"]]], "[0][1][1]: Expected `int`, got `str`: '1'."),
  )
  def test_error_names_the_field(self, field, content, message):
    with self.assertRaises(ValueError) as caught:
      json_lib.from_plain(Tree, _PLAIN | {field: content}, where="x.json")
    self.assertStartsWith(str(caught.exception), f"x.json.{field}{message}")

  def test_other_types_have_no_plain_form(self):
    with self.assertRaisesRegex(TypeError, "bytes has no plain form"):
      json_lib.to_plain({"a": b""})


class PlaceTest(parameterized.TestCase):

  def test_prints_and_parses(self):
    place = types.Place(pipeline=1, stage=12)
    self.assertEqual(str(place), "1/12")
    self.assertEqual(types.Place.parse("1/12"), place)

  @parameterized.parameters("", "1/2/3", "-1/2")
  def test_refuses(self, text):
    with self.assertRaisesRegex(ValueError, "written pipeline/stage"):
      types.Place.parse(text)

"""Answers that are remembered are those that would be given."""

from unittest import mock

from absl.testing import parameterized
import hypothesis
from hypothesis import strategies as st

from bamboo_jax.recovery import decide, layout as layout_lib
from bamboo_jax.sim import build
from tests import policies, profiles

_COSTS = profiles.make_transformer(num_blocks=3)
_SETTINGS = {
    "varuna": dict(rungs=("checkpoint",)),
    "bamboo": dict(rungs=("shadow", "reconfigure", "checkpoint"), pipeline__layout="depth"),
    "full": dict(redundancy__mode="lazy"),
    "recycle": dict(rungs=("reroute", "reconfigure", "checkpoint"), pipeline__layout="depth"),
    "drop": dict(rungs=("drop", "checkpoint"), pipeline__layout="depth"),
}
_EVENTS = st.lists(
    st.tuples(
        st.sampled_from(["lost", "joined", "noticed"]),
        st.lists(st.integers(0, 99), min_size=1, max_size=3),
        st.sampled_from(("step", "boundary")),
    ),
    max_size=10,
)


def make_policy(name):
  config = policies.make_config(num_stages=2, num_microbatches=4, **_SETTINGS[name])
  (policy,) = build.make_choices(name, config, _COSTS)
  return policy


def join(policy, places, count, when):
  joined = tuple(range(places.num_places, places.num_places + count))
  change = decide.Change(joined=joined)
  return policy.answer(places, change, when=when, find_zones=dict)


class DecisionsTest(parameterized.TestCase):

  @parameterized.parameters(*_SETTINGS)
  def test_as_if_asked_each_time(self, name):
    policy = make_policy(name)

    @hypothesis.settings(max_examples=25, derandomize=True)
    @hypothesis.example([("noticed", [0], "boundary"), ("lost", [0], "step")])
    @hypothesis.given(_EVENTS)
    def check(events):
      nonlocal num_vacant
      # Names of nodes by place here, and a state with those names there.
      names, places = [], policy.empty
      layout, live, num_added = layout_lib.Layout(), [], 0
      zones = {n: f"zone{n % 3}" for n in range(50)}
      for kind, picks, when in [("joined", range(8), "boundary"), *events]:
        if kind == "joined":
          nodes = [num_added + i for i in range(len(picks))]
          num_added += len(picks)
          live += nodes
        else:
          nodes = sorted({live[pick % len(live)] for pick in picks if live})
        if kind == "lost":
          live = [node for node in live if node not in nodes]
        if kind == "joined":
          names += nodes
        numbers = [names.index(n) for n in nodes if n in names]
        as_kind = tuple if kind == "joined" else frozenset
        answer = policy.answer(
            places,
            decide.Change(**{kind: as_kind(numbers)}),
            when=when,
            find_zones=lambda names=tuple(names): {i: zones[n] for i, n in enumerate(names)},
        )
        decision = decide.decide(
            layout,
            decide.Change(**{kind: as_kind(nodes)}, zones=zones),
            ladder=policy.ladder,
            planner=policy.planner,
            when=when,
        )
        names = [names[number] for number in answer.numbers]
        places, layout = answer.places, decision.layout
        self.assertEqual(answer.decision.rung, decision.rung)
        by_place, here = dict(enumerate(names)), places.layout
        renamed = [p.renumbered(by_place) for p in here.pipelines]
        spares = [names[n] for n in here.spares]
        self.assertEqual(tuple(renamed), layout.pipelines)
        self.assertEqual(tuple(spares), layout.spares)
        num_vacant += any(p.vacant for p in layout.pipelines)
        self.assertEqual(places.num_training, len({*layout.live}) - len(spares))

    num_vacant = 0
    check()
    self.assertEqual(num_vacant > 0, name in ("recycle", "drop"))

  def test_memory_is_bounded(self):
    policy = make_policy("bamboo")
    places = join(policy, policy.empty, 4, "boundary").places
    with mock.patch.object(type(policy), "MAX_ANSWERS", 2):
      for count in range(1, 5):
        answer = join(policy, places, count, "step")
        self.assertLen(answer.places.layout.spares, count)
        self.assertLessEqual(len(policy._answers), 2)

  def test_disbanding(self):
    policy = make_policy("bamboo")
    places = join(policy, policy.empty, 5, "boundary").places
    disbanded, numbers = policy.disband(places)
    self.assertEqual(disbanded.layout.pipelines, ())
    self.assertEqual(numbers, (0, 1, 2, 3, 4))
    self.assertEqual(disbanded.num_training, 0)

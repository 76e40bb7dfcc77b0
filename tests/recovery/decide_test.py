"""Which rung is taken, and who does what afterwards."""

from absl.testing import parameterized

from bamboo_jax import config as config_lib
from bamboo_jax.recovery import decide as recovery, layout as layout_lib, planner as planner_lib
from bamboo_jax.sim import speed, times as times_lib
from tests import layouts, tables

_NUM_STAGES = 4

_RUNGS = {
    "bamboo": dict(reroute="none"),
    "oobleck": dict(has_replicas=False, reroute="none"),
    "recycle": dict(has_replicas=False, reconfigure=False, reroute="stage"),
    "varuna": dict(has_replicas=False, reroute="none", reconfigure=False),
    "drop": dict(has_replicas=False, reroute="none", reconfigure=False, drop=True),
    "full": dict(reroute="stage"),
    "cluster": {},
    "programs": dict(reroute="whole_shares"),
    "nothing": dict(has_replicas=False, reroute="none", reconfigure=False, checkpoint=False),
}
_SYSTEMS = ("bamboo", "oobleck", "recycle", "varuna", "drop")


def make_ladder(name, **changes):
  return layouts.make_ladder(**(_RUNGS[name] | changes))


def make_planner(*, replicas, **pauses):
  """Returns a planner of pipelines of 4 nodes; slower if a node has two stages or one is vacant."""
  table = speed.Table("table", _NUM_STAGES, {n: float(n) for n in range(4, 33, 4)})
  times = times_lib.PipelineTimes(
      table, config_lib.DurationsSection(**pauses), drops=False, profile=None
  )
  shapes = speed.TableShapes(_NUM_STAGES, replicas, is_even=False)
  in_order = lambda partitions, nodes, zones: nodes
  return planner_lib.Planner(shapes, times, fold=False, arrange=in_order)


def make_layout(name, num_pipelines=2, spares=""):
  replicas = make_ladder(name).has_replicas
  num_nodes = num_pipelines * _NUM_STAGES
  return layout_lib.Layout(
      make_planner(replicas=replicas).fresh(range(num_nodes), {}), spares=layouts.nodes(spares)
  )


def decide(name, layout, *, when="step", lost="", joined=(), noticed="", pauses=None, **options):
  ladder = make_ladder(name, **options)
  return recovery.decide(
      layout,
      recovery.Change(
          frozenset(layouts.nodes(lost)), tuple(joined), frozenset(layouts.nodes(noticed))
      ),
      ladder=ladder,
      planner=make_planner(replicas=ladder.has_replicas, **(pauses or {})),
      when=when,
  )


def owners_of(layout):
  return layouts.owners(layout.pipelines)


class LossTest(parameterized.TestCase):

  @parameterized.parameters(
      # Two pipelines, nodes 0 to 3 and 4 to 7; rungs in the order of _SYSTEMS.
      ("2", "shadow reconfigure reroute checkpoint drop"),
      ("02", "shadow reconfigure reroute checkpoint drop"),
      ("12", "reconfigure reconfigure reroute checkpoint drop"),
      ("26", "shadow checkpoint checkpoint checkpoint checkpoint"),
      ("17", "shadow reconfigure reroute checkpoint checkpoint"),
      ("126", "reconfigure checkpoint checkpoint checkpoint checkpoint"),
      ("1256", "checkpoint checkpoint checkpoint checkpoint checkpoint"),
      ("8", "none none none none none"),  # A spare.
      ("9", "none none none none none"),  # Nobody knows it.
  )
  def test_rung(self, lost, rungs):
    expected = dict(zip(_SYSTEMS, rungs.split(), strict=True))
    got = {}
    for name in expected:
      decision = decide(name, make_layout(name, spares="8"), lost=lost)
      got[name] = decision.rung
      self.assertEqual(decision.rolls_back, decision.rung == "checkpoint")
      self.assertTrue(decision.reason)
    self.assertEqual(got, expected)

  @parameterized.named_parameters(
      ("too_few_nodes", "varuna", 1, "01", "wait"),
      ("too_few_to_reconfigure", "bamboo", 1, "01", "wait"),
      ("nothing_is_switched_on", "nothing", 2, "0", "stop"),
  )
  def test_no_rung(self, name, num_pipelines, lost, rung):
    decision = decide(name, make_layout(name, num_pipelines), lost=lost)
    self.assertEqual(decision.rung, rung)
    self.assertEqual(decision.layout.pipelines, ())
    live = {*range(4 * num_pipelines)} - {*layouts.nodes(lost)}
    self.assertEqual({*decision.layout.spares}, live)

  def test_peers_compute_until_a_spare_comes(self):
    first = decide("recycle", make_layout("recycle"), lost="2")
    self.assertIn(" 0/2 ", first.reason)
    self.assertEqual(first.layout.pipelines[0].vacant, {2})
    self.assertEqual(first.layout.pipelines[0].nodes, (0, 1, 3))
    second = decide("recycle", first.layout, joined=[9], when="boundary")
    self.assertEqual(second.rung, "repair")
    self.assertEqual(second.reason, "1 spare takes a place")
    self.assertEqual(owners_of(second.layout), ["0193", "4567"])
    self.assertTrue(second.is_repaired)

  @parameterized.named_parameters(
      # Two pipelines and a spare; rungs by share and whole share, live nodes.
      ("neighbours", "12", "reroute reroute", "03 4567"),
      ("and_a_shadow", "125", "reroute reroute", "03 467"),
      # No pipeline has all stages, so none can compute all of a share.
      ("both", "1247", "reroute reconfigure", "03 56"),
      ("all_of_one", "0123", "reroute reroute", "4567"),
  )
  def test_others_compute_for_a_pipeline(self, lost, rungs, nodes):
    pairs = zip(("cluster", "programs"), rungs.split(), strict=True)
    for name, rung in pairs:
      decision = decide(name, make_layout(name, spares="8"), lost=lost)
      self.assertEqual(decision.rung, rung)
      self.assertEqual(decision.layout.spares, (8,))
      if rung == "reroute":
        layout = decision.layout
        found = ["".join(map(str, p.nodes)) for p in layout.pipelines]
        self.assertEqual(" ".join(found), nodes)
      # Node 0 has stage 1 too, if it lives.
      self.assertRegex(decision.reason, r"\b0/0" if "0" in lost else r"\b0/2")

  def test_without_a_planner(self):
    layout = make_layout("bamboo")
    for lost, rung in (([2], "shadow"), ([1, 2], "checkpoint")):
      decision = recovery.decide(
          layout, recovery.Change(frozenset(lost)), ladder=make_ladder("bamboo")
      )
      self.assertEqual(decision.rung, rung)
    self.assertStartsWith(decision.reason, "0/2 have no")
    self.assertEqual(decision.layout.pipelines, ())


# Case, system, pipelines, spares, nodes lost in a step before, and events; then the rung, and the
# owners of the first pipeline. Of three pipelines one is slow: two fast ones are not worth it.
# Four that are slow are: 4 / 1.5 is less than 3. A loss among the events is in a step.
_EVENTS = """
slow                       bamboo   3  -   2  -                    repair       0113
all_slow                   bamboo   4  -   2  -                    reconfigure  0134
another                    bamboo   1  -   -  joined=abcd          reconfigure  0123
not_enough_for_one         bamboo   1  -   -  joined=abc           none         0123
spare                      bamboo   2  8   -  noticed=2            repair       0183
shadow_takes_over          bamboo   2  -   -  noticed=2            shadow       0113
owners_take_over           recycle  2  -   -  noticed=2            reroute      0123
no_shadow                  oobleck  2  -   -  noticed=2            reconfigure  0134
no_copy                    bamboo   2  -   -  noticed=1256         reconfigure  0347
restart                    varuna   2  -   -  noticed=2            checkpoint   0134
too_few                    varuna   2  -   -  noticed=01234        none         0123
dead                       oobleck  1  89  -  lost=2 noticed=28    checkpoint   0139
dead_too_few               oobleck  1  -   -  lost=2 noticed=2     wait         -
dead_too_few_but_for_them  oobleck  1  8   -  lost=2 noticed=8     checkpoint   0138
dead_all_leave             oobleck  1  8   -  lost=2 noticed=0138  checkpoint   0138
"""


class BoundaryTest(parameterized.TestCase):

  def test_spares_take_places(self):
    layout = make_layout("bamboo", spares="8")
    layout = decide("bamboo", layout, lost="24").layout
    decision = decide("bamboo", layout, when="boundary", joined=[9])
    self.assertEqual(decision.rung, "repair")
    self.assertStartsWith(decision.reason, "2 spares take places, ")
    self.assertEqual(owners_of(decision.layout), ["0183", "9567"])
    self.assertEqual(decision.layout.spares, ())
    self.assertLen(decision.layout.pipelines[0].roles.shadows, 4)

  @parameterized.named_parameters(*tables.read_rows(_EVENTS))
  def test_events(self, name, num_pipelines, spares, before, events, rung, first):
    layout = decide(name, make_layout(name, int(num_pipelines), spares), lost=before).layout
    events = dict(event.split("=") for event in events.split())
    joined = [int(node, 16) for node in events.pop("joined", "")]
    when = "step" if "lost" in events else "boundary"
    decision = decide(name, layout, when=when, joined=joined, **events)
    self.assertEqual(decision.rung, rung)
    self.assertEqual(decision.rolls_back, when == "step")
    self.assertEqual([*owners_of(decision.layout), ""][0], first)

  def test_a_pause_must_pay_within_the_horizon(self):
    for secs, rung in ((299.0, "reconfigure"), (301.0, "none")):
      given = dict(joined=range(10, 14), when="boundary", horizon_secs=600.0)
      layout = make_layout("bamboo", 1)
      pauses = {"reconfigure_secs": secs}
      self.assertEqual(decide("bamboo", layout, pauses=pauses, **given).rung, rung)

  def test_others_take_over_if_new_pipelines_do_not_pay(self):
    given = dict(noticed="12", when="boundary", pauses={"reconfigure_secs": 1e3})
    decision = decide("cluster", make_layout("cluster"), **given)
    self.assertEqual((decision.rung, owners_of(decision.layout)[0]), ("reroute", "0023"))

  def test_without_handing_over_nodes_stay_until_they_are_gone(self):
    for hand_over, rung in ((True, "shadow"), (False, "none")):
      layout = make_layout("bamboo")
      decision = decide("bamboo", layout, noticed="2", when="boundary", hand_over=hand_over)
      self.assertEqual(decision.rung, rung)
      self.assertEqual(decision.layout.leaving, {2})
      self.assertEqual(2 in decision.layout.spares, hand_over)
      self.assertCountEqual(decision.layout.live, range(8))

  @parameterized.parameters(("3", "0124"), ("03", "0123"))
  def test_start_with_nodes_that_leave(self, noticed, first):
    """They get places if there are no others."""
    layout = layout_lib.Layout(spares=(0, 1, 2, 3, 4))
    decision = decide("varuna", layout, when="boundary", noticed=noticed)
    self.assertEqual(decision.rung, "checkpoint")
    self.assertEqual(owners_of(decision.layout), [first])

  def test_start(self):
    layout = layout_lib.Layout(spares=tuple(range(3)))
    waiting = decide("varuna", layout, when="boundary")
    self.assertEqual(waiting.rung, "wait")
    started = decide("varuna", waiting.layout, when="boundary", joined=[7, 5])
    self.assertEqual(started.rung, "checkpoint")
    self.assertFalse(started.rolls_back)
    self.assertEqual(owners_of(started.layout), ["0127"])
    self.assertEqual(started.layout.spares, (5,))

"""Memory of stages and replicas, against tables that one can add up by hand."""

import dataclasses
import random

from absl.testing import parameterized

from bamboo_jax import config as config_lib
from bamboo_jax.plan import cost_model, memory as memory_lib
from bamboo_jax.schedule import failover, lines as lines_lib, simulate as simulate_lib
from tests import profiles


def _layer(name, *, parameters, activation, residual, working=0):
  return profiles.make_layer(
      name,
      parameter_bytes=parameters,
      slot_bytes=2 * parameters,
      activation_bytes=activation,
      residual_bytes=residual,
      working_bytes=working,
  )


LAYERS = (
    _layer("a", parameters=100, activation=3, residual=10, working=50),
    _layer("b", parameters=200, activation=5, residual=20, working=60),
    _layer("c", parameters=400, activation=7, residual=40, working=70),
    _layer("d", parameters=800, activation=9, residual=80, working=20),
)
_BUBBLE = memory_lib.Upkeep(protection=config_lib.RedundancySection(mode="bubble"))
_TIE = cost_model.TieCost("a", "d", 90)


# In mixed precision; the first layer multiplies with nothing.
MIXED = tuple(dataclasses.replace(l, copy_bytes=(l.parameter_bytes - 100) // 2) for l in LAYERS)


def _model(
    ties=(), cuts=None, layers=LAYERS, mode="none", refresh="gradient", slots="device", **upkeep
):
  protection = config_lib.RedundancySection(mode=mode, refresh=refresh, slots=slots)
  upkeep = memory_lib.Upkeep(protection=protection, **upkeep)
  return memory_lib.MemoryModel(layers, in_flight=(3, 2, 1), upkeep=upkeep, ties=ties, cuts=cuts)


def _of(memory, names):
  """Returns parts of a node's memory, and the peaks of phases, by name."""
  return {
      n: memory.phases[n] if n in memory.phases else getattr(memory, f"{n}_bytes") for n in names
  }


_FROZEN = tuple(dataclasses.replace(l, frozen_bytes=l.parameter_bytes - 10) for l in LAYERS)
# Layers b and c, whose parameters are 600, slots 1200.
_SHADOW = dict(replica=1800, buffer=0, received=600, fetched=0)


class PartsTest(parameterized.TestCase):

  @parameterized.named_parameters(
      # Stage, first layer, one after the last, then what is expected:
      # parameters, slots, accumulators, residuals, transfers, working memory.
      ("first", 0, 0, 2, (300, 600, 600, 3 * 30, 2 * 5, 60)),
      ("middle", 1, 2, 3, (400, 800, 800, 2 * 40, 2 * 5 + 2 * 7, 70)),
      ("last", 2, 3, 4, (800, 1600, 1600, 80, 2 * 7, 20)),
  )
  def test_rows(self, stage, first, last, want):
    got = _model(num_accumulators=2).owner(stage, first, last)
    names = ("parameter", "slot", "accumulator", "residual", "transfer", "working")
    parts = {f"{name}_bytes": size for name, size in zip(names, want, strict=True)}
    self.assertEqual(got, memory_lib.NodeMemory(**parts))
    self.assertEqual(_of(got, ["compute", "total"]), {"compute": sum(want), "total": sum(want)})

  @parameterized.named_parameters(
      (
          *("frozen", (1, 1, 3), dict(layers=_FROZEN, num_accumulators=2, num_shares=2)),
          dict(parameter=600, accumulator=2 * 20, sum=20),
      ),
      (  # The sum does not meet residuals, but a share of the largest unit.
          *("sum", (1, 1, 4), dict(num_shares=2, ties=[_TIE])),
          dict(
              sum=1400 + 90,
              compute=5600 + 2 * 140 + 2 * 3 + 70,
              reduce=5600 + 1490 + 800,
              refresh=5600 + 1490,
              apply=5600 + 1490,
          ),
      ),
      (  # Copies are there while rows run.
          *("copies", (1, 1, 3), dict(layers=MIXED)),
          dict(copy=200, compute=2400 + 2 * 60 + 2 * 3 + 2 * 7 + 70 + 200, reduce=2400),
      ),
      # Of d; b, c have 600.
      ("units", (0, 0, 4), dict(num_shares=3, cuts=[1, 3]), dict(sum_working=2 * 800)),
      ("state", (0, 0, 2), dict(mode="bubble", refresh="state"), dict(received=900, apply=2100)),
      ("links", (1, 1, 3), dict(mode="bubble", is_remote=True), dict(buffer=10, link_working=800)),
  )
  def test_owner(self, stage, options, want):
    self.assertEqual(_of(_model(**options).owner(*stage), want), want)

  @parameterized.named_parameters(
      ("gradient", dict(), {}),
      ("state", dict(refresh="state"), dict(received=1800)),
      ("host", dict(slots="host"), dict(replica=600, fetched=1200)),
      ("state_host", dict(refresh="state", slots="host"), dict(replica=600, received=1800)),
      ("remote", dict(is_remote=True), dict(buffer=600)),
      ("remote_state", dict(is_remote=True, refresh="state"), dict(buffer=1800, received=1800)),
      ("frozen", dict(layers=_FROZEN), dict(received=20)),
      ("ahead", dict(layers=MIXED), dict(working=70, copy=200)),
      ("lazy", dict(layers=MIXED, mode="lazy"), dict(working=0, copy=0)),
  )
  def test_shadow(self, options, want):
    got = _model(**{"mode": "bubble", **options}).shadow(1, 3)
    want = _SHADOW | want
    self.assertEqual(_of(got, want), want)

  def test_rerouted(self):
    self.assertEqual(_model(layers=_FROZEN, num_rerouted=3).rerouted(1, 1, 3).accumulator_bytes, 60)

  def test_slots_come_from_the_host_in_apply(self):
    model = _model(mode="bubble", slots="host")
    node = memory_lib.add([model.owner(0, 0, 1), model.shadow(1, 2)])
    self.assertEqual(_of(node, ["refresh", "apply"]), {"refresh": 800, "apply": 1200})


def _duties(num_stages):
  found = memory_lib.find_duties(num_stages, _BUBBLE)
  return [(d.victim, d.node, d.owned, d.replicas) for d in found]


class DutiesTest(parameterized.TestCase):

  def test_two_stages(self):
    self.assertEqual(
        _duties(2),
        [
            (None, 0, (0,), (1,)),
            (None, 1, (1,), (0,)),
            (0, 1, (0, 1), ()),  # It has nobody to hold replicas.
            (1, 0, (0, 1), ()),
        ],
    )

  def test_a_shadow_gets_two_replicas(self):
    after = [d for d in _duties(4) if d[0] == 2]
    self.assertEqual(after, [(2, 0, (0,), (1, 2)), (2, 1, (1, 2), (3,))])

  def test_an_owner_stands_in_for_one_of_another_pipeline(self):
    upkeep = dict(num_accumulators=2, num_rerouted=3)
    own, alone, *more = memory_lib.find_duties(2, memory_lib.Upkeep(**upkeep))
    self.assertEqual([d.stands_in for d in (own, alone, *more)], [0, 0, 1, 1])
    needs = dict(_model(**upkeep).find_needs((0, 2, 4)))
    one, two = needs[own], needs[more[0]]
    self.assertEqual(two.parameter_bytes, one.parameter_bytes)
    self.assertEqual(one.accumulator_bytes, 2 * one.parameter_bytes)
    self.assertEqual(two.accumulator_bytes, 5 * one.parameter_bytes)
    self.assertEqual(two.residual_bytes, 2 * one.residual_bytes)
    # With replicas a single death leaves the stage to its shadow.
    upkeep["protection"] = config_lib.RedundancySection(mode="bubble")
    found = memory_lib.find_duties(2, memory_lib.Upkeep(**upkeep))
    self.assertFalse(any(d.stands_in for d in found))


class RowsTest(parameterized.TestCase):

  def test_rows_need_no_more(self):
    """Of drawn pipelines, also after a death: what the simulation has on a device."""
    rng = random.Random(5)
    for _ in range(60):
      num_stages = rng.randint(2, 6)
      layers = [
          profiles.make_layer(
              str(i),
              forward_ms=rng.uniform(0.1, 4.0),
              backward_ms=rng.uniform(0.1, 8.0),
              parameter_bytes=0,
              slot_bytes=0,
              activation_bytes=rng.randint(1, 99) * (i + 1 < num_stages),
              residual_bytes=rng.randint(1, 99),
          )
          for i in range(num_stages)
      ]
      # Every activation is part of the residuals of the next layer.
      layers = [
          dataclasses.replace(b, residual_bytes=b.residual_bytes + a.activation_bytes)
          for a, b in zip([layers[0], *layers], layers, strict=False)
      ]
      bounds = range(num_stages + 1)
      costs = profiles.make_profile(layers).stage_costs(bounds)
      name, count = rng.choice(["1f1b", "gpipe"]), rng.randint(1, 12)
      model = memory_lib.MemoryModel(
          layers,
          in_flight=lines_lib.in_flight_bounds(num_stages, count, name),
          upkeep=memory_lib.Upkeep(protection=config_lib.RedundancySection(mode="lazy")),
      )
      for duty, need in model.find_needs(bounds):
        roles = failover.Roles.initial(range(num_stages))
        if duty.victim is not None:
          roles, _ = failover.fail_over(roles, [duty.victim])
        limits = lines_lib.in_flight_limits(num_stages, name)
        line = lines_lib.Line(roles.owners, range(count), limits)
        row = simulate_lib.simulate([line], costs=costs).instructions[duty.node]
        peak = _peak_bytes(row, costs)
        self.assertLessEqual(peak, need.residual_bytes + need.transfer_bytes, (duty, name, count))


def _peak_bytes(row, costs):
  """Returns the most bytes on the device while a row runs.

  An array is there from the instruction that makes or receives it to its last
  use. Inputs and results of a pass coexist.
  """
  sizes = {"A": costs.activation_bytes, "G": costs.activation_bytes, "R": costs.residual_bytes}
  uses = {"F": "A-", "B": "G=R=", "SA": "A=", "SG": "G="}
  makes = {"F": "A=R=", "RF": "A=", "B": "G-", "RA": "A=", "RG": "G="}

  def arrays(i, kinds):
    pairs = zip(kinds[::2], kinds[1::2], strict=True)
    found = [(kind, i.stage - (shift == "-"), i.microbatch) for kind, shift in pairs]
    return {key for key in found if key[1] >= 0}

  made = {key for i in row for key in arrays(i, makes.get(i.op.value, ""))}
  live, peak = set(), 0
  for i in reversed(row):  # The last use comes first.
    result = arrays(i, makes.get(i.op.value, ""))
    used = arrays(i, uses.get(i.op.value, "")) & made
    during = live | result | used
    peak = max(peak, sum(sizes[kind][stage] for kind, stage, _ in during))
    live = (live - result) | used
  return peak

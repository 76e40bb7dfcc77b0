"""Memory of stages and replicas, against tables that one can add up by hand."""

import dataclasses

from absl.testing import parameterized

from bamboo_jax.plan import cost_model
from bamboo_jax.plan.memory import model as model_lib, needs, upkeep as upkeep_lib
from bamboo_jax.schedule import lines as lines_lib
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
_TIE = cost_model.TieCost("a", "d", 90)


# In mixed precision; the first layer multiplies with nothing.
MIXED = tuple(dataclasses.replace(l, copy_bytes=(l.parameter_bytes - 100) // 2) for l in LAYERS)


def _model(ties=(), cuts=None, layers=LAYERS, **upkeep):
  return model_lib.MemoryModel(
      layers, in_flight=(3, 2, 1), upkeep=upkeep_lib.Upkeep(**upkeep), ties=ties, cuts=cuts
  )


class BoundsTest(parameterized.TestCase):

  @parameterized.named_parameters(
      ("1f1b", "1f1b", 3, 8, (3, 2, 1)),
      ("1f1b_few", "1f1b", 3, 2, (2, 2, 1)),
      ("gpipe", "gpipe", 3, 8, (8, 8, 8)),
  )
  def test_in_flight_bounds(self, schedule, num_stages, num_microbatches, want):
    got = lines_lib.in_flight_bounds(num_stages, num_microbatches, schedule)
    self.assertEqual(got, want)


class OwnerTest(parameterized.TestCase):

  @parameterized.named_parameters(
      # Stage, first layer, one after the last, then what is expected:
      # parameters, slots, accumulators, residuals, transfers, working memory.
      ("first", 0, 0, 2, (300, 600, 600, 3 * 30, 2 * 5, 60)),
      ("middle", 1, 2, 3, (400, 800, 800, 2 * 40, 2 * 5 + 2 * 7, 70)),
      ("last", 2, 3, 4, (800, 1600, 1600, 80, 2 * 7, 20)),
  )
  def test_rows(self, stage, first, last, want):
    got = _model(num_accumulators=2).owner(stage, first, last)
    self.assertEqual(
        got,
        needs.NodeMemory(
            parameter_bytes=want[0],
            slot_bytes=want[1],
            accumulator_bytes=want[2],
            residual_bytes=want[3],
            transfer_bytes=want[4],
            working_bytes=want[5],
        ),
    )
    self.assertEqual(got.phases["compute"], sum(want))
    self.assertEqual(got.total_bytes, sum(want))

  def test_frozen_parameters_have_no_gradients(self):
    layers = [dataclasses.replace(l, frozen_bytes=l.parameter_bytes - 10) for l in LAYERS]
    model = _model(
        layers=layers,
        num_accumulators=2,
        num_shares=2,
        num_rerouted=3,
        protection=upkeep_lib.Protection(),
    )
    own = model.owner(1, 1, 3)
    self.assertEqual((own.parameter_bytes, own.accumulator_bytes, own.sum_bytes), (600, 2 * 20, 20))
    self.assertEqual(model.rerouted(1, 1, 3).accumulator_bytes, 3 * 20)
    replica = model.shadow(1, 3)
    self.assertEqual((replica.replica_bytes, replica.received_bytes), (600 + 1200, 20))

  def test_sum_does_not_meet_residuals(self):
    got = _model(num_shares=2, ties=[_TIE]).owner(1, 1, 4)
    resident = 1400 * (1 + 2 + 1)
    self.assertEqual(got.sum_bytes, 1400 + 90)
    self.assertEqual(
        got.phases,
        {
            "compute": resident + 2 * 140 + 2 * 3 + 70,
            # A share of the largest unit.
            "reduce": resident + 1490 + 800,
            "refresh": resident + 1490,
            "apply": resident + 1490,
        },
    )

  def test_copies_are_there_while_rows_run(self):
    got = _model(layers=MIXED).owner(1, 1, 3)
    self.assertEqual(got.copy_bytes, 50 + 150)
    plain = _model().owner(1, 1, 3).phases
    self.assertEqual(got.phases, plain | {"compute": plain["compute"] + 200})

  def test_sums_go_by_units(self):
    got = _model(num_shares=3, cuts=[1, 3]).owner(0, 0, 4)
    self.assertEqual(got.sum_working_bytes, 2 * 800)  # Of d; b, c have 600.

  def test_proposed_state(self):
    protection = upkeep_lib.Protection(refresh="state")
    got = _model(protection=protection).owner(0, 0, 2)
    self.assertEqual(got.received_bytes, 300 + 600)
    self.assertEqual(got.phases["apply"], 300 * (1 + 2 + 1) + 900)

  def test_links_keep_buffers(self):
    protection = upkeep_lib.Protection()
    got = _model(protection=protection, is_remote=True).owner(1, 1, 3)
    self.assertEqual(got.buffer_bytes, 3 + 7)
    self.assertEqual(got.link_working_bytes, 2 * 400)

  @parameterized.product(
      refresh=[None, "gradient", "state"],
      num_accumulators=[1, 3],
      num_shares=[1, 2, 3],
      is_remote=[False, True],
      layers=[LAYERS, MIXED],
  )
  def test_total_is_that_of_the_owner(self, refresh, **upkeep):
    protection = refresh and upkeep_lib.Protection(refresh)
    model = _model([_TIE], protection=protection, **upkeep)
    for stage in range(3):
      for first in range(4):
        for last in range(first + 1, 5):
          self.assertEqual(
              model.total_bytes(stage, first, last), model.owner(stage, first, last).total_bytes
          )


class ShadowTest(parameterized.TestCase):

  @parameterized.named_parameters(
      # Replica, buffers, received, fetched; parameters are 600, slots 1200.
      ("gradient", "gradient", "device", False, (1800, 0, 600, 0)),
      ("state", "state", "device", False, (1800, 0, 1800, 0)),
      ("host", "gradient", "host", False, (600, 0, 600, 1200)),
      ("state_host", "state", "host", False, (600, 0, 1800, 0)),
      ("remote", "gradient", "device", True, (1800, 600, 600, 0)),
      ("remote_state", "state", "device", True, (1800, 1800, 1800, 0)),
  )
  def test_parts(self, refresh, slots, is_remote, want):
    protection = upkeep_lib.Protection(refresh, slots)
    got = _model(protection=protection, is_remote=is_remote).shadow(1, 3)
    self.assertEqual(
        (*(got.replica_bytes, got.buffer_bytes), *(got.received_bytes, got.fetched_bytes)), want
    )

  def test_slots_come_from_the_host_in_apply(self):
    model = _model(protection=upkeep_lib.Protection(slots="host"))
    node = needs.add([model.owner(0, 0, 1), model.shadow(1, 2)])
    self.assertEqual(node.phases["refresh"], 400 + 200 + 200)
    self.assertEqual(node.phases["apply"], 400 + 200 + 200 + 400)

  @parameterized.parameters((True, 70, 50 + 150), (False, 60, 50))
  def test_redundant_passes_need_room(self, runs_ahead, working, copied):
    protection = upkeep_lib.Protection(runs_ahead=runs_ahead)
    model = _model(layers=MIXED, protection=protection)
    node = needs.add([model.owner(0, 0, 2), model.shadow(2, 3)])
    self.assertEqual(node.working_bytes, working)
    self.assertEqual(node.copy_bytes, copied)

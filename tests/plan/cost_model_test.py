"""Profiles are checked when built, survive a file and know what they are of."""

import dataclasses
import functools
import json
import operator
import re

from absl.testing import parameterized

from bamboo_jax.plan import cost_model
from bamboo_jax.schedule import costs as costs_lib

_EMBED = cost_model.LayerCost(
    name="embed",
    forward_ms=0.1,
    backward_ms=0.30000000000000004,
    update_ms=0.5,
    parameter_bytes=4096,
    slot_bytes=8192,
    activation_bytes=1024,
    residual_bytes=64,
)
_HEAD = dataclasses.replace(_EMBED, name="head", norm_ms=0.25)
_PROFILE = cost_model.Profile(
    layers=(_EMBED, _HEAD),
    link_latency_ms=0.5,
    link_bytes_per_ms=1024.0,
    reduce_latency_ms=0.25,
    reduce_bytes_per_ms=2048.0,
    dispatch_ms=0.01,
    measured=True,
    fingerprint={"model": {"name": "gpt2", "width": 64}, "shapes": [4, 128], "jax": "0.10.2"},
    vote_ms=0.125,
    ties=(cost_model.TieCost("embed", "head", 2048),),
)


class ProfileTest(parameterized.TestCase):

  @parameterized.parameters(
      (_EMBED, "forward_ms", -1.0, "forward_ms must be a finite"),
      (_EMBED, "update_ms", float("nan"), "update_ms must be a finite"),
      (_EMBED, "residual_bytes", -1, "residual_bytes must be"),
      (_PROFILE, "layers", (_EMBED, _EMBED, _HEAD), "unique names, got emb"),
      (_PROFILE, "link_bytes_per_ms", 0, "_per_ms must be .* > 0"),
      (_PROFILE, "link_latency_ms", -1, "link_latency_ms must be"),
      (
          *(_PROFILE, "ties", (cost_model.TieCost("embde", "head", 1),)),
          "Unknown tied layer 'embde'; did you mean 'embed'?",
      ),
      (_PROFILE, "ties", (cost_model.TieCost("head", "embed", 1),), "must come before its user"),
      (_PROFILE, "fingerprint", {"a": {1, 2}}, "plain JSON values"),
  )
  def test_refuses(self, of, field, value, message):
    with self.assertRaisesRegex(ValueError, message):
      dataclasses.replace(of, **{field: value})

  def test_devices_of_a_node_share_its_passes(self):
    got = _PROFILE.on_mesh(4)
    for layer, whole in zip(got.layers, _PROFILE.layers, strict=True):
      self.assertEqual(layer.forward_ms, whole.forward_ms / 4)
      self.assertEqual(layer.parameter_bytes, whole.parameter_bytes)
    self.assertFalse(got.measured)

  def test_fits(self):
    _PROFILE.check_fingerprint({**_PROFILE.fingerprint, "shapes": (4, 128)}, where="a")

  @parameterized.named_parameters(
      ("value", {"jax": "0.9"}, 'jax: have "0.10.2", want "0.9".'),
      ("absent", {"device": "cpu"}, 'device: have nothing, want "cpu".'),
      (
          "several_and_nested",
          {"model": {"name": "bert", "depth": 2}, "shapes": [4, 64]},
          'model.depth: have nothing, want 2; model.name: have "gpt2", want'
          ' "bert"; model.width: have 64, want nothing; shapes: have [4, 128],'
          " want [4, 64].",
      ),
      ("type", {"jax": None}, 'jax: have "0.10.2", want null.'),
  )
  def test_stale(self, changes, message):
    with self.assertRaisesRegex(ValueError, f"^a: .* another set-up: {re.escape(message)}$"):
      _PROFILE.check_fingerprint({**_PROFILE.fingerprint, **changes}, where="a")


class ProfileJsonTest(parameterized.TestCase):

  def test_round_trip(self):
    text = cost_model.to_json(_PROFILE)
    self.assertEqual(cost_model.from_json(text), _PROFILE)
    regions = costs_lib.Regions({0: "us", 1: "eu"}, 50.0, 1000.0)
    self.assertEqual(cost_model.to_json(dataclasses.replace(_PROFILE, regions=regions)), text)

  def test_fields_with_a_default_may_be_absent(self):
    fields = json.loads(cost_model.to_json(_PROFILE))
    del fields["ties"], fields["vote_ms"], fields["layers"][1]["norm_ms"]
    got = cost_model.from_json(json.dumps(fields))
    self.assertEqual((got.ties, got.vote_ms, got.layers[1].norm_ms), ((), 0, 0))

  @parameterized.named_parameters(
      ("empty", "", "p.json is not JSON"),
      ("list", "[]", r"p.json must hold a JSON object, got \[\]"),
      ("no_version", "{}", "p.json: version must be 1, got None"),
  )
  def test_refuses_text(self, text, message):
    with self.assertRaisesRegex(ValueError, message):
      cost_model.from_json(text, source="p.json")

  def test_a_file_that_cannot_be_read_names_the_option(self):
    with self.assertRaisesRegex(ValueError, "^config.plan.profile=no.json: No such file"):
      cost_model.read_profile("no.json")

  @parameterized.parameters(
      # Where, what is there instead (None: nothing), and the message.
      ("dispatch_ms", None, ": Object missing required field `dispatch_ms`"),
      ("layers.1.slot_bytes", "8", ".layers[1].slot_bytes: Expected `int`, got `str`: '8'."),
      ("ties.0.tied_bytes", -1, ".ties[0]: tied_bytes must be a finite number"),
      ("layers", [], ": layers must not be empty."),
      ("regions", {}, " must have no regions: they follow from the zones of a run's nodes."),
  )
  def test_refuses_fields(self, where, value, message):
    fields = json.loads(cost_model.to_json(_PROFILE))
    *path, name = [int(p) if p.isdecimal() else p for p in where.split(".")]
    inner = functools.reduce(operator.getitem, path, fields)
    if value is None:
      del inner[name]
    else:
      inner[name] = value
    with self.assertRaisesRegex(ValueError, "^p.json" + re.escape(message)):
      cost_model.from_json(json.dumps(fields), source="p.json")

"""An agent's metrics, as Prometheus reads them."""

import errno
import json
import pathlib
import re
import socket
import types
from unittest import mock
import urllib.request

from absl.testing import absltest
import yaml

from bamboo_jax import config
from bamboo_jax.cluster.agent import exporter, roster as roster_lib
from bamboo_jax.net import web
from tests import members
from tests.launch import commands

_DEPLOY = pathlib.Path(__file__).resolve().parents[3] / "docs" / "deploy"
# What the writer of the log reports; see `training.record.outputs`.
_METRICS = dict(
    loss=2.5,
    learning_rate=1e-3,
    tokens_per_sec=4e4,
    samples_per_sec=32.0,
    bubble_pct=25.0,
    step_ms=250.0,
    mfu_pct=40.0,
    goodput_pct=75.0,
    usd=1.5,
)
_TOTALS = {"deaths": 3, "recoveries": 2, "pause_seconds": 0.5}


def make_agent(**status):
  """Returns the part of an agent that is read."""
  roster = roster_lib.Roster("life 0", config.ClusterSection(), 3)
  roster.me = members.member(0)
  roster.adopt(members.view(4, 0, 2, 5, leaving=(2,)))
  options = types.SimpleNamespace(workdir="runs/mine", name="n0", zone="a")
  return types.SimpleNamespace(roster=roster, status=status, options=options)


def find_samples():
  """Returns the metrics of the agent that knows most, by name."""
  told = make_agent(steps=7, metrics=_METRICS, totals=_TOTALS)
  samples = exporter.find_samples(told)
  return {f"bamboo_{sample.name}": sample.value for sample in samples}


def find_names(expressions):
  return {*re.findall(r"\bbamboo_\w+", " ".join(expressions))}


def read(port):
  with urllib.request.urlopen(f"http://127.0.0.1:{port}/") as answer:
    return answer.read().decode()


class ExporterTest(absltest.TestCase):

  def test_base_units(self):
    want = dict(step=7, step_seconds=0.25, bubble_ratio=0.25, goodput_ratio=0.75, mfu_ratio=0.4)
    want |= dict(tokens_per_second=4e4, cost_dollars=1.5)
    want |= dict(deaths_total=3, recoveries_total=2, pause_seconds_total=0.5)
    found = find_samples()
    self.assertEqual({name: found[f"bamboo_{name}"] for name in want}, want)
    for name in found:
      self.assertNotRegex(name, "_(ms|pct|per_sec|percent)(_total)?$")

  def test_alerts_and_dashboard_name_what_is_exported(self):
    alerts = yaml.safe_load((_DEPLOY / "prometheus_alerts.yml").read_text())
    rules = [rule for group in alerts["groups"] for rule in group["rules"]]
    self.assertNotEmpty(rules)
    for rule in rules:
      self.assertContainsSubset({"alert", "expr", "annotations"}, rule)
    board = json.loads((_DEPLOY / "grafana_dashboard.json").read_text())
    shown = [t["expr"] for p in board["panels"] for t in p["targets"]]
    shown += [v["query"] for v in board["templating"]["list"]]
    for expressions in [rule["expr"] for rule in rules], shown:
      names = find_names(expressions)
      self.assertNotEmpty(names)
      self.assertContainsSubset(names, find_samples())

  def test_text(self):
    known = [None]
    port = exporter.serve(0, host="127.0.0.1", agent=lambda: known[-1])
    read_lines = lambda: [line for line in read(port).splitlines() if "# HELP" not in line]
    self.assertEqual(read_lines(), [])
    own = dict(view=4.0, members=3.0, leaving=1.0, is_member=1.0)
    of_worker = dict(step=7.0, loss=2.5, deaths_total=3.0)
    worker = dict(steps=7, metrics={"loss": 2.5, "reason": "text"}, totals={"deaths": 3})
    for status, want in ((worker, own | of_worker), ({}, own)):
      known.append(make_agent(**status))
      lines = []
      for name, value in want.items():
        kind = "counter" if name.endswith("_total") else "gauge"
        lines.append(f"# TYPE bamboo_{name} {kind}")
        lines.append(f'bamboo_{name}{{node="n0",run="mine",zone="a"}} {value}')
      self.assertEqual(read_lines(), lines)

  def test_an_agent_serves_loopback_unless_told_otherwise(self):
    said = commands.fork("-m", "launch.agent", "--help").stdout
    self.assertRegex(said, r"--metrics_host: [^(]*\(default: '127.0.0.1'\)")

  def test_no_files_are_left(self):
    errors = [OSError(errno.EMFILE, "Too many open files")] * 2
    accept, pauses = socket.socket.accept, []

    def refuse(listener):
      if errors:
        raise errors.pop()
      return accept(listener)

    clock = types.SimpleNamespace(sleep=pauses.append)
    with mock.patch.object(socket.socket, "accept", refuse), mock.patch.object(web, "time", clock):
      port = exporter.serve(0, host="127.0.0.1", agent=make_agent)
      self.assertIn("bamboo_view", read(port))
    self.assertLen(pauses, 2)

"""An agent's metrics, as Prometheus reads them."""

import errno
import json
import pathlib
import re
import socket
import threading
import types
from unittest import mock
import urllib.request

from absl.testing import absltest
import yaml

from bamboo_jax import config
from bamboo_jax.cluster.agent import exporter, roster as roster_lib
from tests import members, strangers
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


class ExporterTest(absltest.TestCase):

  def test_base_units(self):
    want = dict(step=7, step_seconds=0.25, bubble_ratio=0.25, goodput_ratio=0.75, mfu_ratio=0.4)
    want |= dict(tokens_per_second=4e4, cost_dollars=1.5)
    want |= dict(deaths_total=3, recoveries_total=2, pause_seconds_total=0.5)
    self.assertEqual({name: find_samples()[f"bamboo_{name}"] for name in want}, want)

  def test_names_and_types_follow_the_conventions_of_prometheus(self):
    told = make_agent(steps=7, metrics=_METRICS, totals=_TOTALS)
    port = exporter.serve(0, host="127.0.0.1", agent=lambda: told)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/") as answer:
      text = answer.read().decode()
    kinds = dict(re.findall(r"# TYPE (\w+) (\w+)", text))
    self.assertEqual(kinds.keys(), find_samples().keys())
    for name, kind in kinds.items():
      self.assertEqual(kind == "counter", name.endswith("_total"), msg=name)
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

    def read():
      with urllib.request.urlopen(f"http://127.0.0.1:{port}/") as answer:
        lines = answer.read().decode().splitlines()
      return [line for line in lines if not line.startswith("#")]

    self.assertEqual(read(), [])
    known.append(make_agent(steps=7, metrics={"loss": 2.5, "reason": "text"}))
    labels = '{node="n0",run="mine",zone="a"}'
    self.assertEqual(
        read(),
        [
            f"bamboo_view{labels} 4.0",
            f"bamboo_members{labels} 3.0",
            f"bamboo_leaving{labels} 1.0",
            f"bamboo_is_member{labels} 1.0",
            f"bamboo_step{labels} 7.0",
            f"bamboo_loss{labels} 2.5",
        ],
    )
    known.append(make_agent())
    self.assertLen(read(), 4)

  def test_an_agent_serves_loopback_unless_told_otherwise(self):
    said = commands.fork("-m", "launch.agent", "--help").stdout
    self.assertRegex(said, r"--metrics_host: [^(]*\(default: '127.0.0.1'\)")
    page = commands.ROOT / "docs" / "guides" / "deploy.md"
    self.assertIn("| `--metrics_port` | 127.0.0.1 unless", page.read_text())

  def test_idle_callers(self):
    """They use up neither threads nor files, and lock nobody out."""
    port = exporter.serve(0, host="127.0.0.1", agent=make_agent)
    before = threading.active_count()
    idle = strangers.hold(port, 100)
    for caller in idle:
      self.addCleanup(caller.close)
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/") as answer:
      self.assertIn("bamboo_view", answer.read().decode())
    for caller in idle[:80]:
      caller.settimeout(20)
      self.assertEqual(caller.recv(1), b"")
    self.assertLess(threading.active_count() - before, 20)

  def test_no_files_are_left(self):
    errors = [OSError(errno.EMFILE, "Too many open files")] * 2
    accept, pauses = socket.socket.accept, []

    def refuse(listener):
      if errors:
        raise errors.pop()
      return accept(listener)

    clock = types.SimpleNamespace(sleep=pauses.append)
    with (
        mock.patch.object(socket.socket, "accept", refuse),
        mock.patch.object(exporter, "time", clock),
    ):
      port = exporter.serve(0, host="127.0.0.1", agent=make_agent)
      with urllib.request.urlopen(f"http://127.0.0.1:{port}/") as answer:
        self.assertIn("bamboo_view", answer.read().decode())
    self.assertLen(pauses, 2)

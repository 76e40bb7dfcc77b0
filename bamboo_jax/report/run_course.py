"""The course of a training run, from the log in its workdir."""

from collections.abc import Mapping, Sequence
import itertools
from typing import Any

from bamboo_jax.accounting import ledger as ledger_lib, prices as prices_lib, runs
from bamboo_jax.report import content


def make_course(
    lines: Sequence[Mapping[str, Any]], *, price: prices_lib.Price, market: str
) -> content.Course | None:
  """Returns the course of a run; None if the log holds no account.

  A rolled back piece has no throughput. A joining node is counted and paid for
  from its boot. Raises `ValueError` for a bad "account".
  """
  totals, events, boots = [ledger_lib.Totals()], [], []
  lost = {l["step"] for l in lines if l.get("event") == "recovery"}
  for line in lines:
    for entry in runs.entries([line]):
      if entry.totals.secs > totals[-1].secs:
        totals.append(entry.totals)
    if line.get("event") == "recovery":
      text = f"lost {', '.join(line['victims'])} in step {line['step']}"
      events.append(content.RunEvent(totals[-1].secs, text, line["rung"]))
    elif line.get("event") == "layout" and line["step"] not in lost:
      if line["rung"] != "none":
        secs = totals[-1].secs
        events.append(content.RunEvent(secs, "other owners", line["rung"]))
    elif line.get("event") == "join":
      named = line.get("names") or [f"node {n}" for n in line["boot_secs"]]
      secs_of = zip(named, line["boot_secs"].values(), strict=True)
      for name, secs in secs_of:
        boots.append((len(totals) - 1, secs))
        text = f"{name} joined after {secs:.1f} s"
        events.append(content.RunEvent(totals[-1].secs, text))
  if len(totals) == 1:
    return None
  pieces = [
      (after.secs - before.secs, before, after) for before, after in itertools.pairwise(totals)
  ]
  num_nodes = [(b.node_secs - a.node_secs) / s for s, a, b in pieces]
  for charged, boot_secs in boots:
    if charged < len(pieces):
      end_secs = totals[charged].secs
      num_nodes[charged] -= boot_secs / pieces[charged][0]
      for i, (secs, before, after) in enumerate(pieces[:charged]):
        start_secs = max(before.secs, end_secs - boot_secs)
        num_nodes[i] += max(0.0, after.secs - start_secs) / secs
  usd_per_sec = price.usd_per_hour(market) / 3600
  return content.Course(
      secs=[t.secs for t in totals],
      samples_per_sec=[(b.num_samples - a.num_samples) / s for s, a, b in pieces],
      num_nodes=num_nodes,
      usd=[t.node_secs * usd_per_sec for t in totals],
      events=events,
  )

"""Which nodes are in a run, and of which run: what the records of a folder say.

  views/N        view N; see `views`
  run/R          identity and config of the run that began in view R, or 0
  tickets/R/K    the node that has number K in it
  placed/R       whether its first nodes are placed by zone
  faults/R/L     the run in which the fault in line L of a file happened, as a command that
                 began in run R outlives some; the numbers of the nodes that it hits, or of
                 a join the ticket after which its node has come
  done/R         made once all steps of it are done; who comes later has nothing to do
  nodes/LIFE     an agent that can be connected to; a mark
  status/R       what the run tells `bamboo status`; a mark, and decides nothing

All but marks are made once and never changed. A process that comes late, or that
got no answer, reads them and learns what was decided. A folder has one log of
views for ever: each command begins another run in it, with a view without
members. First it asks the members of the former run in the log, and one that
lives answers there:

  view N            members
  view N+1          "bamboo cluster asks whether any member of view N is alive"
  view N+2          "n2 is alive", or no members: whichever is made first

What blocks takes the records; an agent calls it in a thread.
"""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
import ipaddress
import json
import os
import pathlib
import socket
from typing import Any

from absl import logging

from bamboo_jax import base
from bamboo_jax.base import json as json_lib, threads
from bamboo_jax.cluster import views
from bamboo_jax.cluster.records import LostError, Records
from bamboo_jax.net import addresses

_DIAL_SECS = 1.0
_POLL_SECS = 0.5
ALONE = "bamboo train"  # Name of the member of a run in one process.


# Views.


def make_view(records: Records, known: views.View, view: views.View) -> views.View:
  """Returns the view after `known`: `view`, unless another was made before.

  Raises `OSError` if `known` is not there: the place has lost records, or a
  folder is not mounted.
  """
  if known.number and records.find(f"views/{known.number}", views.View) != known:
    raise LostError(f"The records of the run have lost view {known.number}. Is its folder mounted?")
  made: views.View = records.make(f"views/{view.number}", view, views.View)
  return made


def newest_view(records: Records) -> views.View:
  """Returns the newest view; `views.EMPTY` if there is none."""
  found: views.View | None = records.find(f"views/{records.newest('views', 0)}", views.View)
  return found or views.EMPTY


def views_after(records: Records, number: base.ViewId) -> list[views.View]:
  """Returns the views that follow one, in order."""
  return records.follow("views", number, views.View)


def stop(records: Records, name: str) -> None:
  """Tells the members of the newest view to save and end; blocks."""
  view = newest_view(records)
  while view.members and not view.stops:
    view = make_view(records, view, views.stop(view, name))


def check(records: Records, view: views.View) -> None:
  """Raises `base.FencedError` if the life of `view` is over."""
  if view.number and records.find(f"views/{view.number}") is None:
    raise FileNotFoundError(
        f"There is no record of view {view.number}. Was it removed, or is the folder not mounted?"
    )
  for later in views_after(records, view.number):
    if later.run != view.run:
      raise base.FencedError("The workdir now belongs to another run.")
    if not later.members:
      raise base.FencedError(
          f"The run restarted in view {later.number} without this node, as no "
          "member could be reached."
      )


def check_now(records: Records, view: views.View) -> None:
  """Carries out `check`; retries for a while if the folder cannot be read, as agents do."""
  base.ask_again(lambda: check(records, view))


# Runs.


def note_done(records: Records, view: views.View) -> None:
  """Records that all steps of the run of `view` are done; blocks, and warns if it cannot."""
  try:
    base.ask_again(lambda: records.make(f"done/{view.run}", True))
  except OSError as error:
    logging.warning("Cannot record that the run is complete: %s", error)


def is_alone(view: views.View) -> bool:
  """Whether a run is in one process, see `holding`."""
  return any(m.name == ALONE for m in view.members)


async def ask(
    call: Callable[..., Awaitable[Any]], view: views.View, name: str, patience_secs: float
) -> views.View:
  """Asks whether a member of a view is alive, and waits; returns the newest view.

  It is still a question if none has answered in time. `call` calls a function with the
  records.
  """
  if not view.is_ask or view.asked:
    view = await call(make_view, view, views.ask(view, name))
  now = asyncio.get_running_loop().time
  end_secs = now() + patience_secs
  while view.is_ask:
    await asyncio.sleep(min(_POLL_SECS, patience_secs))
    if found := await call(views_after, view.number):
      view, end_secs = found[-1], now() + patience_secs  # It may be another question.
    elif now() >= end_secs:
      break
  return view


async def replace_run(
    call: Callable[..., Awaitable[Any]],
    view: views.View,
    name: str,
    patience_secs: float,
    *,
    alone: tuple[views.Member, ...] = (),
    asks: bool = True,
) -> tuple[views.View, bool]:
  """Begins another run after that of `view`, unless anybody of it is alive.

  Returns the newest view, and whether this call has made it. The view is of the same run
  if somebody is alive: a member, or before the first members an agent. Another process may
  also have begun a run.

  Args:
    call: Calls a function with the records.
    asks: Whether somebody may be alive.
  """
  if asks and view.members:
    view = await ask(call, view, name, patience_secs)
    if not view.is_ask:
      return view, False
  elif asks:
    before = await call(Records.marks, "nodes")
    await asyncio.sleep(patience_secs)
    after = await call(Records.marks, "nodes")
    if any(before.get(life) != mark for life, mark in after.items()):
      return view, False
  begun = views.begin_run(view, f"{name} begins another run", alone)
  made = await call(make_view, view, begun)
  return made, made == begun


def begin_run(
    records: Records, name: str, patience_secs: float, *, alone: tuple[views.Member, ...] = ()
) -> views.View:
  """Begins another run in the folder; returns the view from which it begins.

  That has no members, or all of a run in one process. Raises `ValueError` if a
  member of the former run is alive.
  """

  async def call(function: Callable[..., Any], *args: Any) -> Any:
    return function(records, *args)

  view = newest_view(records)
  former = records.find(f"run/{view.run}")
  if view == views.EMPTY and former is None and not alone:
    return view
  is_here = former is not None and former["machine"] == find_machine()
  asks = bool(view.members) and not (is_here and all(map(_is_gone, view.members)))
  beginning = replace_run(call, view, name, patience_secs, alone=alone, asks=asks)
  made: views.View  # In a thread, as a notebook has a loop of its own.
  made, is_own = threads.call_beside(asyncio.run, beginning, name="judge").result()
  if not is_own:
    raise ValueError(explain_living(made))
  for life in records.names("nodes"):
    records.drop(f"nodes/{life}")
  return made


def explain_living(view: views.View) -> str:
  """Returns the message that the run of a view is not replaced."""
  names = ", ".join(m.name for m in view.members) or "another command, just started,"
  return f"A run is under way in this workdir, of {names}; end it, or name another --workdir."


def describe_run(incarnation: str, config: Mapping[str, Any]) -> dict[str, Any]:
  """Returns the value of run/R, if this process is the first to make it."""
  return {"id": incarnation, "machine": find_machine(), "config": config}


def find_machine() -> str:
  """Returns an identity of this machine and of the network namespace of this process."""
  boot = pathlib.Path("/proc/sys/kernel/random/boot_id").read_text().strip()
  return f"{boot} {os.readlink('/proc/self/ns/net')}"


def _is_gone(member: views.Member) -> bool:
  """Whether the process of a member has ended for certain.

  A process that merely hangs does not refuse connections. Another machine may
  have a firewall that does.
  """
  try:
    family, address = addresses.find(member.host, member.port, flags=socket.AI_NUMERICHOST)
    if not ipaddress.ip_address(address[0]).is_loopback:
      return False
    with socket.socket(family) as connection:
      connection.settimeout(_DIAL_SECS)
      connection.connect(address)
  except ConnectionRefusedError:
    return True
  except OSError:
    return False
  return False


def find_difference(there: Mapping[str, Any], here: Mapping[str, Any]) -> str:
  """Returns in what a node does not fit its run, "" if it does."""
  there, here = (
      {
          name: json.dumps(value, sort_keys=True)
          for name, value in json_lib.flatten(facts).items()
          if value != {}
      }
      for facts in (there, here)
  )
  for name in sorted(there.keys() | here.keys()):
    if there.get(name) != here.get(name):
      return f"{name} is {there.get(name, 'absent')} there and {here.get(name, 'absent')} here"
  return ""

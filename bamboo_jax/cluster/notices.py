"""Preemption notices of clouds.

Each cloud has a metadata server, reachable from the machine itself only.
`Poller` polls it; the rest is pure. Correctness does not depend on notices: a
node without one is detected as dead.
"""

import asyncio
from collections.abc import Callable, Mapping
import contextlib
import dataclasses
import http
import http.client
import json
from typing import Any
import urllib.error
import urllib.request

from absl import logging

from bamboo_jax import base

_TIMEOUT_SECS = 2.0
_TOKEN_SECS = 60


# Sends a request with method, path and headers; returns the text, None if there is none (404).
Ask = Callable[[str, str, Mapping[str, str]], str | None]


@dataclasses.dataclass(frozen=True)
class Cloud:
  """How to poll one cloud: `look` returns a notice as text, or None."""

  url: str
  every_secs: float
  look: Callable[[Ask], str | None]


def look_aws(ask: Ask) -> str | None:
  """Polls AWS (IMDSv2); may raise `OSError`.

  An interruption is announced about two minutes ahead. A rebalance
  recommendation is no notice: the machine may live for hours after it.
  """
  ttl = {"X-aws-ec2-metadata-token-ttl-seconds": str(_TOKEN_SECS)}
  headers = {"X-aws-ec2-metadata-token": ask("PUT", "/latest/api/token", ttl) or ""}
  spot = ask("GET", "/latest/meta-data/spot/instance-action", headers)
  if spot is None:
    return None
  action = _parse(spot)
  return f"AWS: {action.get('action')} at {action.get('time')}"


def look_gcp(ask: Ask) -> str | None:
  """Polls Google Cloud, which gives notice of 30 s; may raise `OSError`."""
  path = "/computeMetadata/v1/instance/preempted"
  answer = (ask("GET", path, {"Metadata-Flavor": "Google"}) or "").strip()
  if answer not in ("TRUE", "FALSE"):
    raise OSError(f"TRUE or FALSE expected, got {answer[:80]!r}.")
  return "Google Cloud: preempted" if answer == "TRUE" else None


def look_azure(ask: Ask) -> str | None:
  """Polls Azure for events, announced 30 s ahead; may raise `OSError`.

  All machines of a group see an event, which names the affected ones.
  """
  headers = {"Metadata": "true"}
  path = "/metadata/scheduledevents?api-version=2020-07-01"
  content = _parse(ask("GET", path, headers))
  preempted = [
      event
      for event in _list(content, "Events")
      if isinstance(event, dict) and event.get("EventType") == "Preempt"
  ]
  if not preempted:
    return None
  path = "/metadata/instance/compute/name?api-version=2021-02-01&format=text"
  name = (ask("GET", path, headers) or "").strip()
  for event in preempted:
    if name in _list(event, "Resources"):
      return f"Azure: preempted, not before {event.get('NotBefore') or 'now'}"
  return None


CLOUDS = {
    "aws": Cloud("http://169.254.169.254", 5.0, look_aws),
    "gcp": Cloud("http://metadata.google.internal", 1.0, look_gcp),
    "azure": Cloud("http://169.254.169.254", 1.0, look_azure),
}


class Poller:
  """Polls the metadata server of a cloud in `CLOUDS`, or one at `url`."""

  def __init__(self, cloud: str, *, url: str | None = None) -> None:
    """Raises `ValueError` for an unknown cloud."""
    if cloud not in CLOUDS:
      raise ValueError(base.suggest(cloud, CLOUDS, what="cloud"))
    self.cloud = CLOUDS[cloud]
    self._url = (url or self.cloud.url).rstrip("/")
    # A proxy would report about its own machine.
    self._opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))

  def look(self) -> str | None:
    """Returns the notice as text, None if there is none; blocks.

    Raises `OSError` without a valid answer.
    """
    try:
      return self.cloud.look(self._ask)
    except OSError as error:
      raise OSError(
          f"The metadata server {self._url} cannot be polled for preemptions: " f"{error}"
      ) from error

  def _ask(self, method: str, path: str, headers: Mapping[str, str]) -> str | None:
    request = urllib.request.Request(self._url + path, headers=dict(headers), method=method)
    try:
      with self._opener.open(request, timeout=_TIMEOUT_SECS) as response:
        text: str = response.read().decode()
        return text
    except urllib.error.HTTPError as error:
      error.close()
      if error.code != http.HTTPStatus.NOT_FOUND:
        raise OSError(f"status {error.code}.") from error
      return None
    except (ValueError, http.client.HTTPException) as error:
      raise OSError(f"not an answer: {error!r}") from error


async def wait_notice(poller: Poller) -> str:
  """Waits for a notice and returns it; warns if the server does not answer."""
  was_there = True
  while True:
    try:
      if found := await asyncio.to_thread(poller.look):
        return found
      was_there = True
    except OSError as error:
      if was_there:
        logging.warning("%s", error)
      was_there = False
    await asyncio.sleep(poller.cloud.every_secs)


def _parse(text: str | None) -> dict[str, Any]:
  """Returns the JSON object of an answer; `OSError` if it is none."""
  text = text or ""
  with contextlib.suppress(ValueError):
    if isinstance(content := json.loads(text), dict):
      return content
  raise OSError(f"a JSON object expected, got {text[:80]!r}.")


def _list(content: Mapping[str, Any], name: str) -> list[Any]:
  """Returns an array of a JSON object, empty if there is none."""
  found = content.get(name)
  return found if isinstance(found, list) else []

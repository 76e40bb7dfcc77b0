"""Members, views of them, and channels between them."""

from bamboo_jax.cluster import views
from bamboo_jax.schedule import channel as channel_lib


def member(number, zone="a", host="h"):
  return views.Member(number, f"n{number}", zone, f"life {number}", host, 1)


def view(number, *numbers, reason="test", **changes):
  return views.View(number, tuple(map(member, numbers)), reason, **changes)


def channel(text):
  """Returns the channel written as kind@nodes."""
  kind, _, nodes = text.partition("@")
  return channel_lib.Channel(kind, tuple(map(int, nodes.split(","))))

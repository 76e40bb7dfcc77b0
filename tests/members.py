"""Members, and views of them."""

from bamboo_jax.cluster import views


def member(number, zone="a", host="h"):
  return views.Member(number, f"n{number}", zone, f"life {number}", host, 1)


def view(number, *numbers, reason="test", **changes):
  return views.View(number, tuple(map(member, numbers)), reason, **changes)

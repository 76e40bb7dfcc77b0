"""Endpoints of etcd as users write them."""

from absl.testing import parameterized

from bamboo_jax.cluster.store import endpoints


class EndpointsTest(parameterized.TestCase):

  @parameterized.parameters(
      ("a:1", [("a", 1)], False),
      ("[::1]:2379", [("::1", 2379)], False),
      ("10.0.0.1:2379", [("10.0.0.1", 2379)], False),
      ("http://a:1", [("a", 1)], False),
      ("https://a:1", [("a", 1)], True),
      ("https://[fd00::1]:2379/", [("fd00::1", 2379)], True),
      ("http://a:1,b:2", [("a", 1), ("b", 2)], False),
      ("https://a:1,https://b:2", [("a", 1), ("b", 2)], True),
  )
  def test_parse(self, text, places, are_secure):
    self.assertEqual(endpoints.parse(text), (places, are_secure))

  @parameterized.parameters(
      *("", "a", "a:", ":1", "a:0", "a:65536", "a:x", "[]:1", "a:1,"),
      *("ftp://a:1", "http://", "https://a", "http://a:1/path", "a:1//"),
  )
  def test_what_is_no_endpoint(self, text):
    with self.assertRaisesRegex(ValueError, "is written host:port, .* got "):
      endpoints.parse(text)

  @parameterized.parameters("https://a:1,b:2", "a:1,https://b:2")
  def test_some_take_tls(self, text):
    with self.assertRaisesRegex(ValueError, "All endpoints .* or none does"):
      endpoints.parse(text)

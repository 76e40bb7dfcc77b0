import socket

from absl.testing import absltest
from absl.testing import parameterized

from bamboo_jax.runtime.wire import endpoints


class ListenTest(parameterized.TestCase):

  @parameterized.parameters(
      ("127.0.0.1", "unix:"),
      ("127.0.0.2", "unix:"),
      ("localhost", "unix:"),
      ("::1", "unix:"),
      ("0.0.0.0", "0.0.0.0:"),
  )
  def test_address(self, host, prefix):
    endpoint = endpoints.listen(host, None)  # Used by connections only.
    self.addCleanup(endpoint.close)
    self.assertStartsWith(endpoint.address, prefix)

  def test_an_unknown_name(self):
    with self.assertRaises(socket.gaierror):
      endpoints.listen("no_such_host.invalid", None)


if __name__ == "__main__":
  absltest.main()

"""Certificates, and whom an agent lets in."""

import datetime
from unittest import mock

from absl.testing import parameterized
from cryptography import x509

from bamboo_jax.net import identity as identity_lib
from tests import folders


def issue(secret=b"s", run="run", role="agent", name="n0", now=None):
  return identity_lib.issue(secret, run=run, role=role, name=name, now=now)


class SecretTest(folders.FolderCase):

  @parameterized.parameters(
      ("127.0.0.1", b"", ""),
      ("10.1.2.3", b"", "loopback interface only"),
      ("0.0.0.0", b"", "--host=0.0.0.0 is all addresses .* such as 10.0.0.7"),
      ("0.0.0.0", b"sixteen bytes at", "is all addresses of this machine"),
      ("::", b"sixteen bytes at", "is all addresses of this machine"),
      ("10.1.2.3", b"sixteen bytes at", ""),
      ("8.8.8.8", b"sixteen bytes at", "a private network only, got '8.8.8.8'"),
      ("::1", b"", ""),
      ("localhost", b"", ""),
      ("fd00::7", b"", "loopback interface only, got 'fd00::7'"),
      ("fd00::7", b"sixteen bytes at", ""),
      ("2600::7", b"sixteen bytes at", "Give --host an address such as"),
      ("fe80::7", b"sixteen bytes at", "--host=fe80::7 is an address of one l"),
      ("::ffff:8.8.8.8", b"sixteen bytes at", "a private network only, got"),
      ("[::1]", b"", "is no address of this machine: .* without brackets"),
      ("127.0.0.1:80", b"", "is no address of this machine: .* without a port"),
  )
  def test_host(self, host, secret, problem):
    with self.refuses_if(problem):
      identity_lib.check_host(host, secret=secret)

  @parameterized.parameters(
      ("sixteen bytes at least\n", 0o600, ""),
      ("short", 0o600, "at least 16 bytes"),
      ("abcdefg" * 9, 0o600, "8 of them different; draw one with head -c 32"),
      ("abcdefgh" * 2, 0o600, ""),
      ("sixteen bytes at least", 0o644, "not be readable by others"),
  )
  def test_file(self, text, mode, problem):
    path = self.folder / "secret"
    path.write_text(text)
    path.chmod(mode)
    with self.refuses_if(problem):
      self.assertEqual(identity_lib.read_secret(str(path)), text.strip().encode())


class KeyTest(parameterized.TestCase):

  def authority(self, **who):
    (found,) = issue(**who).client.get_ca_certs(binary_form=True)
    return x509.load_der_x509_certificate(found).public_key().public_numbers()

  def test_it_follows_from_the_secret(self):
    self.assertEqual(self.authority(run="x"), self.authority(run="y"))
    self.assertNotEqual(self.authority(), self.authority(secret=b"other"))

  def test_a_guess_takes_long(self):
    # Guesses can be tested on certificates and on signed entries: both follow from scrypt.
    identity = issue(b"a secret")
    self.assertEndsWith(identity.entry_key.hex(), "c9b379f2")
    self.assertEqual(self.authority(secret=b"a secret").x % 2**32, 0xF52A2E7C)


class CertificatesTest(folders.FolderCase):

  def write(self, **who):
    """Writes what an authority has issued at a time."""

    def make(run, secret, *files):
      for name, content in zip(("authority", "certificate", "key"), files, strict=True):
        (self.folder / f"{name}.pem").write_bytes(content)

    with mock.patch.object(identity_lib, "_make_identity", make):
      issue(**who)

  def load(self):
    return identity_lib.load(self.folder, run="run", role="agent", name="n0")

  def test_the_own_ones(self):
    self.write(secret=b"another")
    identity = self.load()
    (authority,) = identity.client.get_ca_certs()
    self.assertEqual(identity.server.get_ca_certs(), [authority])

  @parameterized.parameters(
      ({"name": "n1"}, "must name spiffe://run/agent/n0, it names .*n1"),
      ({"run": "a/b"}, "it names .*spiffe://a%2Fb/agent/n0"),
      (
          {"now": datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)},
          "is valid from 2019-12-31 .* to 2020-12-31 .*, and now it is",
      ),
  )
  def test_of_others(self, who, problem):
    self.write(**who)
    with self.assertRaisesRegex(ValueError, problem):
      self.load()

  def test_an_hour_is_no_difference(self):
    now = datetime.datetime.now(datetime.UTC)
    self.write(now=now + datetime.timedelta(hours=1))
    self.load()

  @parameterized.parameters("authority", "certificate", "key")
  def test_missing_or_damaged(self, name):
    self.write()
    (self.folder / f"{name}.pem").write_text("?")
    with self.assertRaisesRegex(ValueError, "must hold authority.pem"):
      self.load()
    (self.folder / f"{name}.pem").unlink()
    with self.assertRaisesRegex(ValueError, f"No such file.*{name}.pem"):
      self.load()

import dataclasses

from absl.testing import parameterized

from bamboo_jax import config as config_lib
from bamboo_jax.accounting import prices as prices_lib
from tests import folders, profiles

_HEADER = "instance,on_demand_usd_per_hour,spot_usd_per_hour,source,date"
_TWO = """# Ours.
provider,instance,region,gpu,gpu_count,on_demand_usd_per_hour,\
spot_usd_per_hour,source,date
x,small,east,A,1,3.0,1.0,"a, b",2021
x,small,west,A,1,3.0,1.5,c,2024-06
x,small,east,A,1,3.5,1.4,c,2024-06

x,large,east,A,8,24,24,c,2023
"""


def find(instance, path, **options):
  """Returns the price of an instance in a file."""
  return prices_lib.find(config_lib.CostSection(instance=instance, prices=str(path), **options))


class PricesTest(folders.FolderCase):

  def _write(self, *lines, header=_HEADER):
    path = self.folder / "p.csv"
    path.write_text("\n".join([header, *lines]))
    return path

  def test_line(self):
    facts = dict(provider="x", instance="small", region="east", gpu="A", gpu_count=1)
    want = profiles.make_price(3.0, 1.0, source="a, b", date="2021", **facts)
    for mark in ("", "\ufeff"):
      self.assertEqual(prices_lib.load_prices(self._write(header=mark + _TWO))[0], want)

  def test_default_file_has_the_published_prices(self):
    path = folders.ROOT / "third_party" / "published" / "prices.csv"
    ours = [
        dataclasses.replace(price, network_gbit_per_sec=None)
        for price in prices_lib.load_prices(prices_lib.DEFAULT_PATH)
    ]
    self.assertContainsSubset(prices_lib.load_prices(path), ours)

  def test_default_file_has_every_gpu_of_every_provider(self):
    found = {
        (price.provider, price.gpu.split()[0], price.gpu_count)
        for price in prices_lib.load_prices(prices_lib.DEFAULT_PATH)
    }
    wanted = {("V100", 1), ("T4", 1), ("L4", 1), ("H100", 1), ("B200", 8)}
    wanted |= {("A100", 8), ("H100", 8), ("H200", 8)}
    missing = {
        (provider, *machine)
        for provider in ("aws", "gcp", "azure")
        for machine in wanted
        if (provider, *machine) not in found
    }
    # No L4 is for rent there, nor B200 but in GB200, with no spot price known.
    self.assertEqual(missing, {("azure", "L4", 1), ("azure", "B200", 8)})

  @parameterized.named_parameters(
      ("newest", "large", {}, 24.0),
      ("region", "small", {"region": "west"}, 1.5),
      ("newest_of_region", "small", {"region": "east"}, 1.4),
      ("date", "small", {"date": "2021"}, 1.0),
  )
  def test_find(self, instance, options, spot):
    path = self._write(header=_TWO)
    price = find(instance, path, **options)
    self.assertEqual(price.usd_per_hour("spot"), spot)
    self.assertGreaterEqual(price.usd_per_hour("on_demand"), spot)

  def test_what_is_undated_is_older_than_any(self):
    lines = ["a,2,1,s,undated", "a,2,2,s,1999"]
    newest = find("a", self._write(*lines))
    self.assertEqual(newest.spot_usd_per_hour, 2)
    only = find("a", self._write(lines[0]))
    self.assertEqual(only.date, "undated")

  @parameterized.named_parameters(
      ("instance", "smal", {}, "Unknown instance in .*p.csv 'smal'; did you"),
      ("region", "small", {"region": "eas"}, "'eas'; did you mean 'east'"),
      ("date", "small", {"date": "2022"}, "date of small in .*p.csv '2022'.*2021, 2024"),
      ("several", "small", {}, "2 prices of 2024-06, in west, east: give"),
  )
  def test_does_not_find(self, instance, options, message):
    path = self._write(header=_TWO)
    with self.assertRaisesRegex(ValueError, message):
      find(instance, path, **options)

  def test_a_price_that_is_unknown(self):
    """Other lines can be used, and so can other dates of the same instance."""
    path = self._write("a,2,,s,2024", "a,2,1,s,2023", "b,3,1.5,s,2024", "c,,1,s,2024")
    self.assertIsNone(prices_lib.load_prices(path)[0].spot_usd_per_hour)
    self.assertEqual(find("b", path).usd_per_hour("spot"), 1.5)
    self.assertEqual(find("a", path, date="2023").usd_per_hour("spot"), 1)
    for instance, column in (("a", "spot"), ("c", "on_demand")):
      with self.assertRaisesRegex(
          ValueError, f"'{instance}' has no {column}_usd_per_hour of 2024 in .*csv"
      ):
        find(instance, path)

  @parameterized.named_parameters(
      ("spot_above", "a,1,2,s,2024", "p.csv:3: The spot price of 'a', 2.0, is"),
      ("text", "a,1,x,s,2024", "p.csv:3: spot_usd_per_hour must be a number"),
      ("nothing", "a,0,0,s,2024", "p.csv:3: on_demand.* must be above 0"),
      ("nan", "a,nan,1,s,2024", "p.csv:3: on_demand.* above 0, got nan"),
      ("short", "a,1,1,s", "p.csv:3: there must be 5 columns, got 4"),
      ("no_source", "a,1,1,,2024", "p.csv:3: A price needs 'source'"),
      ("no_name", ",1,1,s,2024", "p.csv:3: A price needs 'instance'"),
      ("date", "a,1,1,s,June", "p.csv:3: date of 'a' must be year.*'June'"),
      ("quote", '"a,1,1,s,2024', "p.csv:3: unexpected end"),
      ("unknown", None, "p.csv:1: Unknown column 'spott'", f"{_HEADER},spott"),
      ("missing", None, "p.csv:1: column 'on_demand", "instance,source,date"),
      ("twice", None, "p.csv:1: column 'date' is needed, and", f"{_HEADER},year"),
      ("empty", "", "p.csv: there are no prices", ""),
      ("only", "", "p.csv: there are no prices"),
  )
  def test_bad_file(self, line, message, header=_HEADER):
    lines = ["a,1,1,s,2024" if line is None else line]
    with self.assertRaisesRegex(ValueError, message):
      prices_lib.load_prices(self._write("# A comment counts.", *lines, header=header))

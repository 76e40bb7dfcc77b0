#!/usr/bin/env bash
# The machine that must be up anyway, with etcd.
#
#   HOST=10.0.0.5 RUN_SECRET=/path/of/secret ./store.sh
#
# HOST is the address at which all nodes reach this machine, and etcd with
# https:// before it, which goes on where it was when it has died. Not tried on a
# cloud; on one machine it was.
set -euo pipefail
data="${DATA_DIR:-$HOME/bamboo-etcd}" run="${RUN:-run}"

# Only who has a certificate made from the secret is let in.
python -c "import pathlib, sys; from bamboo_jax.net import identity
folder, secret, run = sys.argv[1:]
secret = identity.read_secret(secret)
identity.write(pathlib.Path(folder), secret, run=run, role='store')" \
  "$data.tls" "$RUN_SECRET" "$run"

keep() { while true; do "$@" || sleep 1; done; }

keep etcd \
  --data-dir="$data" \
  --auto-compaction-mode=periodic --auto-compaction-retention=5m \
  --listen-client-urls="https://$HOST:2379" \
  --advertise-client-urls="https://$HOST:2379" \
  --trusted-ca-file="$data.tls/authority.pem" --client-cert-auth \
  --cert-file="$data.tls/certificate.pem" --key-file="$data.tls/key.pem" &

trap 'kill $(jobs -p) $(pgrep --parent "$(jobs -p | paste -sd,)")' EXIT
wait

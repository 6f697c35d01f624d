#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Does what a new user does on a fresh machine: clones the committed state of this repository into a
# Debian 12 root that has nothing but apt, and runs scripts/quickstart and scripts/test there.
# Run it by hand, because it takes up to half an hour. Needs root, debootstrap and a Debian mirror.
#
#   tests/deploy/clean_root.sh [--keep] [quickstart|test ...]     both by default
#   tests/deploy/clean_root.sh wheel        installs only the wheel that scripts/wheel builds here, and uses it
#
# Fails if one of them fails or takes longer than 15 minutes.
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)"
limit_s=900

# Mounts and processes of the root are in namespaces that end with this script.
if [[ "${TANDEM_CLEAN_ROOT_INNER-}" != 1 ]]; then
  ((EUID == 0)) || { echo "clean_root: error: chroot needs root" >&2; exit 1; }
  command -v debootstrap > /dev/null || {
    echo "clean_root: error: debootstrap is not installed" >&2
    exit 1
  }
  TANDEM_CLEAN_ROOT_INNER=1 exec unshare --mount --pid --fork --kill-child "$0" "$@"
fi

keep=false
steps=()
for argument in "$@"; do
  case "$argument" in
    --keep) keep=true ;;
    quickstart | test | wheel) steps+=("$argument") ;;
    *) echo "clean_root: error: unknown argument '$argument'" >&2; exit 1 ;;
  esac
done
((${#steps[@]} > 0)) || steps=(quickstart test)

source "$root/tests/deploy/debian_root.sh"
work="$(mktemp -d)"
new="$work/debian"
mounts=(proc dev/shm dev/pts dev sys)

cleanup() {
  local mount
  for mount in "${mounts[@]}"; do
    umount -l "$new/$mount" 2> /dev/null || true
  done
  if $keep; then
    echo "the root stays in $new"
  else
    # --one-file-system: never deletes through a mount into the machine.
    rm -rf --one-file-system "$work"
  fi
}
trap cleanup EXIT

say() { printf '[clean_root %4ds] %s\n' "$SECONDS" "$*"; }

# use_wheel: the first example of docs/python.md and a job, in a new environment; prints the seconds from the start of
# `pip install` to the end of the example.
use_wheel() {
  local wheel variables=() name
  wheel="$("$root/scripts/wheel" --out "$work/dist")" || return
  # What pip needs to know about this machine's network.
  for name in "${!PIP_@}"; do variables+=("$name=${!name}"); done
  if [[ -n "${PIP_CERT-}" ]]; then
    # Not at its place: the package ca-certificates writes there.
    cp "$PIP_CERT" "$new/root/pip.crt"
    variables+=(PIP_CERT=/root/pip.crt)
  fi
  cp "$wheel" "$new/root/"
  sed -n '/^```python$/,/^```$/p;/^```$/q' "$root/docs/python.md" | sed '/^```/d' > "$new/root/example.py"
  cat > "$new/root/train.py" <<'EOF2'
import numpy as np, tandem

with tandem.connect() as client:
    client.create_table("t", dim=4, optimizer=tandem.optim.SGD(lr=1.0), init=tandem.init.Zeros(), mode="sync")
    for _ in range(10):
        rows, version = client.pull("t", np.arange(100))
        client.push("t", np.arange(100), np.ones_like(rows) / client.world_size, version=version)
    assert np.all(client.pull("t", np.arange(100))[0] == -10)
EOF2
  cat > "$new/root/use_wheel" <<'EOF2'
set -eu
apt-get -qq update
apt-get -qq install --yes --no-install-recommends python3-venv > /dev/null
python3 -m venv /root/env
began=$(date +%s%N)
/root/env/bin/pip install --quiet --disable-pip-version-check /root/tandem_runtime-*.whl
installed=$(date +%s%N)
test "$(/root/env/bin/python /root/example.py)" = 3
trained=$(date +%s%N)
echo "installed in $(((installed - began) / 1000000)) ms, the first step ended after $(((trained - began) / 1000000)) ms"
/root/env/bin/tandem run --ps 2 --workers 2 -- /root/env/bin/python /root/train.py
du -sm /root/env/lib/python3*/site-packages/tandem /root/env/lib/python3*/site-packages/tandem_runtime.libs
EOF2
  chroot "$new" env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb LANG=C.UTF-8 \
    DEBIAN_FRONTEND=noninteractive "${variables[@]}" sh /root/use_wheel < /dev/null
}

say "debootstrap"
make_debian_root "$new"
mount --make-rprivate /
mount -t proc proc "$new/proc"
mount --rbind /sys "$new/sys"
mount -t tmpfs -o mode=755 dev "$new/dev"
mkdir "$new/dev/pts" "$new/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$new/dev/pts"
mount -t tmpfs shm "$new/dev/shm"
for node in null zero full random urandom tty; do
  touch "$new/dev/$node"
  mount --bind "/dev/$node" "$new/dev/$node"
done
ln -s pts/ptmx "$new/dev/ptmx"
ln -s /proc/self/fd "$new/dev/fd"
cp /etc/resolv.conf /etc/hosts "$new/etc/"
git clone --quiet --no-hardlinks "$root" "$new/root/tandem"

status=0
for step in "${steps[@]}"; do
  say "scripts/$step"
  began=$SECONDS
  if [[ "$step" == wheel ]]; then
    use_wheel || status=$?
  else
    chroot "$new" env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin TERM=dumb LANG=C.UTF-8 \
      "/root/tandem/scripts/$step" < /dev/null || status=$?
  fi
  took=$((SECONDS - began))
  say "scripts/$step: exit code $status after $took s (limit $limit_s s)"
  ((status == 0)) || exit "$status"
  ((took <= limit_s)) || exit 1
done
say "PASSED"

# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# To be sourced. Makes minimal Debian 12 roots from packages (debootstrap).

# The mirror that this machine's own apt uses for bookworm.
debian_mirror() {
  local found
  found="$(apt-get indextargets --format '$(REPO_URI)|$(RELEASE)' 2> /dev/null |
    sed -n 's/|\(bookworm\|stable\|oldstable\)$//p' | head -n 1)"
  printf '%s\n' "${found:-http://deb.debian.org/debian}"
}

# make_debian_root DIRECTORY: a minimal Debian 12 with the updates and security suites that this
# machine has. Needs root and a mirror.
make_debian_root() {
  debootstrap --variant=minbase bookworm "$1" "$(debian_mirror)" > "$1.log" 2>&1 || {
    tail -n 20 "$1.log" >&2
    return 1
  }
  rm -f "$1.log"
  # The machine's own sources, but only Debian's.
  if [[ -r /etc/apt/sources.list.d/debian.sources ]]; then
    cp /etc/apt/sources.list.d/debian.sources "$1/etc/apt/sources.list.d/"
    : > "$1/etc/apt/sources.list"
  fi
  local config
  for config in /etc/apt/apt.conf.d/*; do
    if grep -qiE 'Acquire::.*proxy|Acquire::.*Verify' "$config"; then
      cp "$config" "$1/etc/apt/apt.conf.d/"
    fi
  done
}

# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Sourced by the container tests. Configures Podman with its own settings and storage, so that the
# machine's are neither needed nor changed. Sets BASE_IMAGE_TAG and defines ensure_base_image.
#
# The storage, with the base image and its layers, is kept between runs in the cache directory.

source "$(dirname "${BASH_SOURCE[0]}")/debian_root.sh"

cache="${XDG_CACHE_HOME:-$HOME/.cache}/tandem"
mkdir -p "$cache/containers"

cat > "$cache/containers/containers.conf" << CONF
[containers]
# Higher limits than these cannot be set inside a sandbox.
default_ulimits = ["nofile=4096:4096", "nproc=4096:4096"]
log_driver = "k8s-file"
[engine]
# crun refuses a mixed v1/v2 cgroup tree; runc does not.
runtime = "runc"
cgroup_manager = "cgroupfs"
events_logger = "file"
[network]
network_backend = "netavark"
CONF
cat > "$cache/containers/storage.conf" << CONF
[storage]
driver = "overlay"
graphroot = "$cache/containers/storage"
runroot = "/run/tandem-containers"
CONF
cat > "$cache/containers/registries.conf" << CONF
unqualified-search-registries = []
CONF
export CONTAINERS_CONF="$cache/containers/containers.conf"
export CONTAINERS_STORAGE_CONF="$cache/containers/storage.conf"
export CONTAINERS_REGISTRIES_CONF="$cache/containers/registries.conf"

BASE_IMAGE_TAG="localhost/tandem-test/debian:12"

# ensure_base_image: makes sure that $BASE_IMAGE_TAG is in the storage. The image is built from
# packages, because a registry is not always reachable.
ensure_base_image() {
  podman image exists "$BASE_IMAGE_TAG" && return
  local root
  root="$(mktemp -d)"
  make_debian_root "$root/debian" &&
    tar -C "$root/debian" -c . | podman import --quiet - "$BASE_IMAGE_TAG" > /dev/null
  local status=$?
  rm -rf "$root"
  return $status
}

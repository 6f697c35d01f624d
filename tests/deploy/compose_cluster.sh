# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Sourced by the tests of compose files, with $binary and $compose_file set: builds an image with the binary
# and defines what they do with a cluster of containers. Skips the test (exit code 77) if there is no
# container engine. Removes everything when the test exits.

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)"

skip() {
  echo "SKIPPED: $*"
  exit 77
}
fail() {
  echo "FAILED: $*" >&2
  exit 1
}
say() { printf '[%3ds] %s\n' "$SECONDS" "$*"; }

for tool in podman podman-compose runc debootstrap; do
  command -v "$tool" > /dev/null || skip "$tool is not installed (CONTRIBUTING.md lists the packages)"
done
((EUID == 0)) || skip "networks between containers need root here"

source "$root/tests/deploy/podman_env.sh"
say "base image"
ensure_base_image || skip "the base image could not be made: is a Debian mirror reachable?"
podman run --rm --network=none "$BASE_IMAGE_TAG" true ||
  skip "podman is installed but cannot start a container here"

work="$(mktemp -d)"
project="tandem-test-$$"
export TANDEM_IMAGE="localhost/tandem-test/tandem:$$"
export TANDEM_DATA="$work/data"

compose() { podman-compose -p "$project" -f "$work/context/deploy/$compose_file" "$@"; }
container() { podman ps -aq --filter "label=com.docker.compose.project=$project" \
  --filter "label=com.docker.compose.service=$1"; }

cleanup() {
  compose down -v -t 1 > /dev/null 2>&1 || true
  podman network rm -f "${project}_default" > /dev/null 2>&1 || true
  podman rmi -f "$TANDEM_IMAGE" > /dev/null 2>&1 || true
  rm -rf "$work"
}
trap cleanup EXIT

# The build context: the files that `--target prebuilt` copies, with the programs at the Dockerfile's path.
mkdir -p "$work/context/build/cli" "$work/data"
cp -r "$root/deploy" "$root/scripts" "$root/jobs" "$root/LICENSE" "$root/.dockerignore" "$work/context"
for program in "$binary" "$binary-rl" "$binary-inspect" "$binary-bench"; do
  install --strip "$program" "$work/context/build/cli/" 2> /dev/null || install "$program" "$work/context/build/cli/"
done
say "image"
# build_stage STAGE TAG
build_stage() {
  podman build --quiet --network=host --build-arg "BASE_IMAGE=$BASE_IMAGE_TAG" --target "$1" -t "$2" \
    -f "$work/context/deploy/Dockerfile" "$work/context" > "$work/build.log" 2>&1 ||
    { cat "$work/build.log" >&2; fail "the image's stage '$1' was not built"; }
}
# The tag keeps the layer with the packages from one run to the next.
build_stage base localhost/tandem-test/base
build_stage prebuilt "$TANDEM_IMAGE"

# unresolved: prints the names of running containers that another one of the cluster does not resolve.
unresolved() {
  local services id
  services="$(podman ps --filter "label=com.docker.compose.project=$project" \
    --format '{{index .Labels "com.docker.compose.service"}}')"
  for id in $(podman ps -q --filter "label=com.docker.compose.project=$project"); do
    # shellcheck disable=SC2016  # $@ and $name are for the container's shell
    podman exec "$id" sh -c 'for name in "$@"; do getent hosts "$name" > /dev/null || echo "$name"; done' \
      sh $services 2> /dev/null || true  # a container that has ended needs no names
  done
}

# start_cluster COUNT: starts the cluster, which must have so many containers. aardvark-dns 1.4 sometimes misses a
# container that starts while it reads its settings, and never resolves that name, or answers that container, again;
# then the cluster is started again.
start_cluster() {
  local attempt count deadline missing
  for attempt in 1 2 3; do
    # podman-compose exits with 0 even if a container could not be started.
    compose up -d > "$work/up.log" 2>&1 || true
    count="$(podman ps -aq --filter "label=com.docker.compose.project=$project" | wc -l)"
    (($1 == count)) || { cat "$work/up.log" >&2; fail "$count of $1 containers were started"; }
    deadline=$((SECONDS + 10))
    while missing="$(unresolved)"; [[ -n "$missing" ]] && ((SECONDS < deadline)); do sleep 0.5; done
    [[ -n "$missing" ]] || return 0
    say "the container engine does not resolve $(sort -u <<< "$missing" | xargs): starting the cluster again"
    compose down -t 1 > "$work/down.log" 2>&1
    podman network rm "${project}_default" > /dev/null 2>&1 || true
  done
  fail "the container engine did not resolve its containers' names in three attempts"
}

exit_code() { podman inspect --format '{{.State.ExitCode}}' "$(container "$1")"; }

# down: removes the cluster, and fails if anything remains.
down() {
  compose down -v > "$work/down.log" 2>&1
  # podman-compose 1.0.3 does not remove the network; docker compose does.
  podman network rm "${project}_default" > /dev/null
  local left
  left="$(podman ps -aq --filter "label=com.docker.compose.project=$project"
    podman volume ls -q | grep "^$project" || true)"
  [[ -z "$left" ]] || fail "compose down left: $left"
}

#!/usr/bin/env bash
# SPDX-License-Identifier: Apache-2.0
# Two servers and two workers, each in its own container, train one job: deploy/compose.yaml with the
# binary given as argument. Then the test kills a worker: the whole job must end and name the worker
# that died. Exit code 77: there is no container engine, so nothing was tested.
#
#   tests/deploy/compose_test.sh build/cli/tandem
set -euo pipefail

root="$(cd "$(dirname "${BASH_SOURCE[0]}")/../.." && pwd -P)"
binary="$(realpath "${1:?the tandem binary is expected as argument}")"

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

compose() { podman-compose -p "$project" -f "$work/context/deploy/compose.yaml" "$@"; }
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
for program in "$binary" "$binary-rl" "$binary-bench"; do
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

# A small version of InstEval: the same columns, and a rating that depends on student and lecturer.
python3 - > "$work/data/insteval.csv" << 'PYTHON'
import random
generator = random.Random(5)
print("s,d,studage,lectage,service,dept,y")
for _ in range(6000):
    s, d = generator.randrange(200), generator.randrange(80)
    y = 1 + (s * 7 % 5 + d * 3 % 5 + generator.randrange(3)) // 2 % 5
    print(s, d, 2 + s % 4, 1 + d % 6, d % 2, d % 14, y, sep=",")
PYTHON

# up ARGUMENTS...: starts the cluster, which trains with these additional arguments.
up() {
  export TANDEM_TRAIN="jobs/insteval.yaml --set data.train=/data/insteval.csv $*"
  # podman-compose exits with 0 even if a container could not be started.
  compose up -d > "$work/up.log" 2>&1 || true
  local count
  count="$(podman ps -aq --filter "label=com.docker.compose.project=$project" | wc -l)"
  ((count == 4)) || { cat "$work/up.log" >&2; fail "$count of 4 containers were started"; }
}

# await_end SECONDS: waits until all four containers have ended; after SECONDS it fails and prints their logs.
await_end() {
  local deadline=$((SECONDS + $1)) running
  while :; do
    running="$(podman ps -q --filter "label=com.docker.compose.project=$project" \
      --filter status=running | wc -l)"
    ((running == 0)) && return
    ((SECONDS < deadline)) || { logs; fail "$running containers still run after $1 s"; }
    sleep 0.5
  done
}

exit_code() { podman inspect --format '{{.State.ExitCode}}' "$(container "$1")"; }

logs() {
  local service
  for service in ps0 ps1 worker0 worker1; do
    echo "--- $service"
    podman logs "$(container "$service")" 2>&1 | tail -n 25
  done >&2
}

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

say "train to the end"
up --set train.epochs=2
await_end 120
for service in worker0 worker1 ps0 ps1; do
  code="$(exit_code "$service")"
  [[ "$code" == 0 ]] || { logs; fail "$service ended with $code"; }
done
volume="$(podman volume inspect --format '{{.Mountpoint}}' "${project}_shared")"
files="$(find "$volume" -type f | wc -l)"
((files > 0)) || fail "the shared volume holds no checkpoint"
say "worker 0 said: $(podman logs "$(container worker0)" 2>&1 | grep -i "tandem deepfm" | tail -n 1)"
say "the checkpoint has $files files"
down

# up_and_training: starts a cluster that trains without end, and waits until it trains.
up_and_training() {
  up --set train.epochs=1000000 --set train.early_stopping.patience=0 \
    --set checkpoint.every_epochs=0 --set train.timeout_seconds=40
  local deadline=$((SECONDS + 90))
  until podman logs "$(container worker0)" 2>&1 | grep -i epoch > /dev/null; do
    ((SECONDS < deadline)) || { logs; fail "worker 0 did not begin to train"; }
    sleep 0.5
  done
}

say "kill -9 of worker 1 while training"
up_and_training
podman kill --signal KILL "$(container worker1)" > /dev/null
await_end 90
[[ "$(exit_code worker0)" != 0 ]] || { logs; fail "worker 0 ended with 0 though worker 1 died"; }
# Not grep -q: it exits at the first match, and pipefail would then report podman's broken pipe.
podman logs "$(container worker0)" 2>&1 | grep -iE '(worker|rank)[ /]1' > /dev/null ||
  { logs; fail "worker 0 does not name worker 1"; }
say "worker 0 said: $(podman logs "$(container worker0)" 2>&1 | grep -iE '(worker|rank)[ /]1' | tail -n 1)"
[[ -z "${TANDEM_TEST_VERBOSE-}" ]] || logs
down

say "stop (what Ctrl-C does) while training"
up_and_training
compose stop -t 30 > "$work/stop.log" 2>&1
for service in worker0 worker1 ps0 ps1; do
  # 137 would be SIGKILL, after SIGTERM had been ignored for 30 s.
  [[ "$(exit_code "$service")" != 137 ]] || { logs; fail "$service ignored SIGTERM"; }
done
down

say "PASSED: trained to the end; ended as a whole when a worker died; stopped; nothing left"

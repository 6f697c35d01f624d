# SPDX-License-Identifier: Apache-2.0
# shellcheck shell=bash
# Shared by the scripts of this folder: `source "$(dirname "$0")/common.sh"`.
# Sets ROOT (the repository) and defines step, die, python_env, build_preset and build_release.

set -euo pipefail

ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd -P)"

# The first script of a chain sets the start time; the scripts that it calls use the same start time.
export TANDEM_SCRIPT_START="${TANDEM_SCRIPT_START:-$(date +%s)}"

# step TEXT...: prints the step that begins now and the seconds since the start.
step() {
  printf '[%4ds] %s\n' "$(($(date +%s) - TANDEM_SCRIPT_START))" "$*"
}

# die TEXT...: prints an error to stderr and ends the script.
die() {
  printf '%s: error: %s\n' "$(basename "$0")" "$*" >&2
  exit 1
}

# python_env: prints the folder of the virtual environment that scripts/python-env makes.
python_env() {
  echo "${TANDEM_PYTHON_ENV:-${XDG_CACHE_HOME:-$HOME/.cache}/tandem/python-env}"
}

# build_preset PRESET FOLDER [TARGET...]: configures and builds a preset whose build tree is FOLDER, with
# ccache when it is installed (CMakeLists.txt looks for it). TANDEM_JOBS limits the parallel compilations;
# a compilation of gRPC code takes about 1 GB, so memory limits them as well as cores. TANDEM_WITH_PYTHON is
# passed to CMake: AUTO, ON (without Python the build fails) or OFF.
build_preset() {
  local preset="$1" folder="$2" memory_gb jobs
  shift 2
  memory_gb="$(awk '/MemAvailable/ {print int($2 / 1048576)}' /proc/meminfo)"
  jobs="$(nproc)"
  ((memory_gb < jobs)) && jobs="$((memory_gb > 0 ? memory_gb : 1))"
  jobs="${TANDEM_JOBS:-$jobs}"
  step "configure ($preset) into $folder/"
  local python=()
  [[ -x "$(python_env)/bin/python" ]] && python=("-DPython_EXECUTABLE=$(python_env)/bin/python")
  [[ -n "${TANDEM_WITH_PYTHON-}" ]] && python+=("-DTANDEM_WITH_PYTHON=$TANDEM_WITH_PYTHON")
  cmake -S "$ROOT" --preset "$preset" --log-level=WARNING "${python[@]}"
  step "build with $jobs jobs"
  cmake --build "$ROOT/$folder" -j "$jobs" ${1+--target "$@"}
}

# build_release [TARGET...]: builds the programs that users run, in build/.
build_release() {
  build_preset release build "$@"
}

// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <string>
#include <tuple>
#include <vector>

#include "absl/strings/match.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "cli/doctor/checks.h"

namespace tandem::cli {
namespace {

std::string FirstLine(const std::string& text) { return text.substr(0, text.find('\n')); }

}  // namespace

Checks CheckMpi(const launcher::Machine& machine) {
  constexpr char kSection[] = "MPI";
  Checks checks;
  const bool built = machine.BuiltWithMpi();
  checks.push_back({Level::kOk, kSection, "backend mpi",
                    built ? "built" : "not built (no MPI was found; Debian: libopenmpi-dev)"});
  const absl::StatusOr<std::string> mpirun = machine.FindProgram("mpirun");
  if (!mpirun.ok()) {
    checks.push_back({built ? Level::kWarn : Level::kOk, kSection, "mpirun", "not in PATH",
                      built ? "backend mpi needs it to start ranks (Debian: openmpi-bin)" : ""});
    return checks;
  }
  const absl::StatusOr<std::string> version = machine.RunProgram({*mpirun, "--version"});
  if (!version.ok()) {
    checks.push_back({Level::kWarn, kSection, "mpirun",
                      absl::StrCat(*mpirun, " does not run: ", version.status().message()),
                      "reinstall it (Debian: openmpi-bin)"});
    return checks;
  }
  const bool other =
      built && !absl::StrContains(*version, "Open MPI") && !absl::StrContains(*version, "OpenRTE");
  checks.push_back(
      {other ? Level::kWarn : Level::kOk, kSection, "mpirun",
       absl::StrCat(*mpirun, ": ", FirstLine(*version)),
       other ? "backend mpi is built with Open MPI; another's mpirun starts ranks that do not know "
               "of each other: use mpirun.openmpi"
             : ""});
  return checks;
}

Checks CheckGpu(const launcher::Machine& machine) {
  constexpr char kSection[] = "GPU";
  Checks checks;
  size_t gpus = 0;
  const absl::StatusOr<launcher::Machine::Cuda> cuda = machine.FindCuda();
  if (cuda.ok()) {
    gpus = cuda->gpus.size();
    checks.push_back(
        {gpus > 0 ? Level::kOk : Level::kWarn, kSection, "CUDA driver",
         absl::StrCat("CUDA ", cuda->driver_version / 1000, ".", cuda->driver_version % 1000 / 10, ", ", gpus,
                      gpus == 1 ? " GPU" : " GPUs", gpus > 0 ? ": " : "", absl::StrJoin(cuda->gpus, ", ")),
         gpus > 0 ? "" : "see CUDA_VISIBLE_DEVICES, and --gpus of the container"});
  } else if (absl::IsNotFound(cuda.status())) {
    checks.push_back({Level::kOk, kSection, "CUDA driver", "none: tensors of this machine are on the CPU"});
  } else {
    checks.push_back({Level::kWarn, kSection, "CUDA driver", std::string(cuda.status().message()),
                      "see nvidia-smi and dmesg; driver and kernel module must have the same version"});
  }
  const absl::StatusOr<launcher::Machine::GpuLibrary> runtime = machine.FindCudaRuntime();
  if (runtime.ok()) {
    const int v = runtime->version;
    const bool newer = cuda.ok() && gpus > 0 && v / 1000 > cuda->driver_version / 1000;
    checks.push_back({newer ? Level::kWarn : Level::kOk, kSection, "CUDA runtime",
                      absl::StrCat(v / 1000, ".", v % 1000 / 10, ": ", runtime->path),
                      newer ? "it is newer than the driver, which refuses it: install the runtime of the "
                              "driver's version, or a newer driver"
                            : ""});
  } else if (absl::IsNotFound(runtime.status())) {
    checks.push_back({gpus > 0 ? Level::kWarn : Level::kOk, kSection, "CUDA runtime", "none",
                      gpus > 0 ? "GPUs are there, but backend nccl finds no libcudart: install "
                                 "nvidia-cuda-runtime, or name its folder in TANDEM_CUDA_LIBRARY_PATH"
                               : ""});
  } else {
    checks.push_back(
        {Level::kWarn, kSection, "CUDA runtime", std::string(runtime.status().message()), "reinstall it"});
  }
  const absl::StatusOr<launcher::Machine::GpuLibrary> nccl = machine.FindNccl();
  if (nccl.ok()) {
    // NCCL's version number of 2.8.4 is 2804; since 2.9 the scheme is 20900.
    const int v = nccl->version;
    const std::string version = v < 10000 ? absl::StrCat(v / 1000, ".", v / 100 % 10, ".", v % 100)
                                          : absl::StrCat(v / 10000, ".", v / 100 % 100, ".", v % 100);
    const bool old = v < 21400;
    checks.push_back({old ? Level::kWarn : Level::kOk, kSection, "NCCL",
                      absl::StrCat(version, ": ", nccl->path),
                      old ? "backend nccl wants 2.14 (non-blocking communicators) or newer" : ""});
  } else if (absl::IsNotFound(nccl.status())) {
    checks.push_back(
        {gpus > 0 ? Level::kWarn : Level::kOk, kSection, "NCCL", "none",
         gpus > 0 ? "GPUs are there, but backend nccl finds no libnccl.so.2: install libnccl2, or name its "
                    "folder in TANDEM_CUDA_LIBRARY_PATH"
                  : ""});
  } else {
    checks.push_back({Level::kWarn, kSection, "NCCL", std::string(nccl.status().message()),
                      "reinstall libnccl2 for this driver"});
  }
  return checks;
}

namespace {

// Returns what the version of gRPC means for this machine; "": nothing.
std::string GrpcAdvice(const std::string& version) {
  const std::vector<std::string> parts = absl::StrSplit(version, '.');
  int number[3] = {};
  for (size_t i = 0; i < std::min<size_t>(3, parts.size()); ++i) {
    if (!absl::SimpleAtoi(parts[i], &number[i])) return "";
  }
  std::string advice;
  if (std::make_tuple(number[0], number[1], number[2]) < std::make_tuple(1, 59, 2)) {
    advice =
        "it has faults that later releases mend (CVE-2023-33953, CVE-2023-4785, CVE-2023-44487; 1.59.2 has "
        "none of "
        "them): large headers can keep a processor busy. Strangers end in the handshake of TLS before; with "
        "--trusted-network they must not reach a port of a job: docs/security.md";
  }
  if (number[0] != 1 || number[1] != 51) {
    absl::StrAppend(
        &advice, advice.empty() ? "" : "; ",
        "connections are not limited, and --max-connections is refused: Tandem knows the sockets of gRPC "
        "1.51 only");
  }
  return advice;
}

}  // namespace

Checks CheckVersions(const launcher::Machine& machine) {
  Checks checks;
  for (const launcher::Machine::Version& one : machine.Versions()) {
    const bool differs =
        !one.built.empty() && !one.running.empty() && !absl::StartsWith(one.running, one.built);
    std::string fact = one.running.empty() ? one.built : one.running;
    if (fact.empty()) fact = "linked; it does not tell its version";
    if (differs) absl::StrAppend(&fact, ", built with ", one.built);
    std::string advice = differs ? "build Tandem again on this machine" : "";
    if (advice.empty() && one.library == "gRPC") advice = GrpcAdvice(fact);
    checks.push_back({advice.empty() ? Level::kOk : Level::kWarn, "versions", one.library, fact, advice});
  }
  return checks;
}

}  // namespace tandem::cli

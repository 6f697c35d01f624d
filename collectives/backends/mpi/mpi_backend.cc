// SPDX-License-Identifier: Apache-2.0
#include "collectives/backends/mpi/mpi_backend.h"

#include <dlfcn.h>
#include <unistd.h>

#include <climits>
#include <cstdlib>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "collectives/backends/mpi/plugin.h"

namespace tandem::collectives {
namespace {

constexpr char kSubfolder[] = "/" TANDEM_PLUGIN_SUBDIR "/";

// Returns the folder of the shared library that this code is part of, such as Python's extension module, or
// "" if it is part of the program.
std::string FolderOfThisLibrary() {
  Dl_info info;
  if (dladdr(kSubfolder, &info) == 0 || info.dli_fname == nullptr) return "";
  const absl::string_view path(info.dli_fname);
  // The name of a program may have no folder.
  return absl::StrContains(path, ".so") ? std::string(path.substr(0, path.rfind('/'))) : "";
}

std::vector<std::string> Candidates() {
  std::vector<std::string> paths;
  if (const char* path = std::getenv("TANDEM_PLUGIN_PATH"); path != nullptr && *path != 0) {
    paths.push_back(absl::StrCat(path, "/", mpi::kPluginFile));
  }
  if (const std::string folder = FolderOfThisLibrary(); !folder.empty()) {
    paths.push_back(absl::StrCat(folder, kSubfolder, mpi::kPluginFile));
  }
  char self[PATH_MAX];
  const ssize_t length = readlink("/proc/self/exe", self, sizeof(self));
  if (length > 0) {
    const absl::string_view program(self, length);
    paths.push_back(absl::StrCat(program.substr(0, program.rfind('/')), "/..", kSubfolder, mpi::kPluginFile));
  }
  paths.push_back(absl::StrCat(TANDEM_PLUGIN_DIR "/", mpi::kPluginFile));
  paths.push_back(mpi::kPluginFile);  // LD_LIBRARY_PATH and the system's
  return paths;
}

// dlopen returns the same library again, so no handle is kept here.
absl::StatusOr<const mpi::Plugin*> Load() {
  std::string missing;
  for (const std::string& path : Candidates()) {
    // Global: Open MPI's own components look for its symbols.
    void* library = dlopen(path.c_str(), RTLD_NOW | RTLD_GLOBAL | RTLD_NODELETE);
    if (library == nullptr) {
      const std::string error = dlerror();
      // The error of a plugin that exists but lacks libmpi is more useful than that of one that does not
      // exist.
      if (missing.empty() || !absl::StrContains(error, path)) missing = error;
      continue;
    }
    auto* const entry = reinterpret_cast<const mpi::Plugin* (*)()>(dlsym(library, mpi::kPluginSymbol));
    if (entry == nullptr || absl::string_view(entry()->build) != mpi::kPluginBuild) {
      return absl::FailedPreconditionError(
          absl::StrCat(path, " is of build '", entry == nullptr ? "unknown" : entry()->build,
                       "', this program of '", mpi::kPluginBuild, "'; install both from one build"));
    }
    return entry();
  }
  return absl::FailedPreconditionError(absl::StrCat(
      "backend mpi cannot be loaded (", missing,
      "); install openmpi-bin, and set TANDEM_PLUGIN_PATH to the directory of ", mpi::kPluginFile));
}

}  // namespace

BackendFactory MpiBackendFactory() {
  BackendFactory factory;
  factory.name = "mpi";
  factory.device = Device::Kind::kCpu;
  factory.ranks_may_be_threads = false;  // MPI is initialised once in a process
  factory.viable = [](const BackendOptions& options) -> absl::Status {
    TANDEM_ASSIGN_OR_RETURN(const mpi::Plugin* plugin, Load());
    return plugin->viable(options);
  };
  factory.make = [](const BackendOptions& options) -> absl::StatusOr<std::unique_ptr<Backend>> {
    TANDEM_ASSIGN_OR_RETURN(const mpi::Plugin* plugin, Load());
    return plugin->make(options);
  };
  return factory;
}

}  // namespace tandem::collectives

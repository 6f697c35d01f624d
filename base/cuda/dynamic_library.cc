// SPDX-License-Identifier: Apache-2.0
#include "base/cuda/dynamic_library.h"

#include <dlfcn.h>

#include <utility>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"

namespace tandem::cuda {

absl::StatusOr<DynamicLibrary> DynamicLibrary::Open(const std::vector<std::string>& names) {
  std::string errors, broken;
  for (const std::string& name : names) {
    if (void* handle = dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL | RTLD_NODELETE))
      return DynamicLibrary(name, handle);
    const std::string error = dlerror();
    // "libnccl.so.2: cannot open shared object file: No such file or directory". If the text begins with
    // another name, a library that this one needs is missing.
    const bool missing = absl::StartsWith(error, name) && absl::StrContains(error, "No such file");
    std::string* const list = missing ? &errors : &broken;
    absl::StrAppend(list, list->empty() ? "" : "; ", error);
  }
  const std::string name = names.empty() ? "the library" : names[0];
  if (!broken.empty()) {
    return absl::FailedPreconditionError(absl::StrCat(name, " cannot be loaded: ", broken));
  }
  return absl::FailedPreconditionError(absl::StrCat(name, " not found (", errors, ")"));
}

void* DynamicLibrary::Address(const char* symbol) const { return dlsym(handle_, symbol); }

absl::Status DynamicLibrary::status() const {
  if (missing_.empty()) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(name_, " has no function ", missing_, "; it is too old, or no such library"));
}

std::string DynamicLibrary::path(const char* symbol) const {
  Dl_info info;
  void* const address = Address(symbol);
  const bool found = address != nullptr && dladdr(address, &info) != 0 && info.dli_fname != nullptr;
  return found ? info.dli_fname : name_;
}

}  // namespace tandem::cuda

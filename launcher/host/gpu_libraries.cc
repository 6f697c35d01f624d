// SPDX-License-Identifier: Apache-2.0
#include "launcher/host/gpu_libraries.h"

#include <dlfcn.h>

#include <string>

#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "base/cuda/load_cuda.h"
#include "collectives/backends/nccl/dlopen_api.h"

namespace tandem::launcher {
namespace {

// The functions of CUDA's driver API that are used. int replaces their result enums; 0 is success.
using CuInit = int (*)(unsigned flags);
using CuDriverGetVersion = int (*)(int* version);
using CuDeviceGetCount = int (*)(int* count);
using CuDeviceGetName = int (*)(char* name, int size, int device);
using CuGetErrorName = int (*)(int error, const char** name);

constexpr int kNoDevice = 100;  // CUDA_ERROR_NO_DEVICE

// Loads `library`. Returns NotFound if there is no such file, and Unavailable if it cannot be loaded.
absl::StatusOr<void*> Load(const char* library) {
  if (void* handle = ::dlopen(library, RTLD_NOW | RTLD_LOCAL); handle != nullptr) return handle;
  const char* error = ::dlerror();
  const std::string text = error == nullptr ? library : error;
  // "libcuda.so.1: cannot open shared object file: No such file or directory". If the text begins with
  // another name, a library that this one needs is missing.
  return absl::StartsWith(text, library) && absl::StrContains(text, "No such file")
             ? absl::NotFoundError(text)
             : absl::UnavailableError(text);
}

// Returns NotFound for the error of a library that is not there.
absl::Status NotFoundIfAbsent(const absl::Status& error) {
  return absl::StrContains(error.message(), "not found") ? absl::NotFoundError(error.message())
                                                         : absl::UnavailableError(error.message());
}

template <typename Function>
Function Find(void* library, const char* name) {
  return reinterpret_cast<Function>(::dlsym(library, name));
}

}  // namespace

absl::StatusOr<Machine::Cuda> LoadCuda() {
  const absl::StatusOr<void*> library = Load("libcuda.so.1");
  if (!library.ok()) return library.status();
  const auto init = Find<CuInit>(*library, "cuInit");
  const auto get_version = Find<CuDriverGetVersion>(*library, "cuDriverGetVersion");
  const auto get_count = Find<CuDeviceGetCount>(*library, "cuDeviceGetCount");
  const auto get_name = Find<CuDeviceGetName>(*library, "cuDeviceGetName");
  const auto error_name = Find<CuGetErrorName>(*library, "cuGetErrorName");
  if (init == nullptr || get_version == nullptr || get_count == nullptr || get_name == nullptr) {
    return absl::UnavailableError("libcuda.so.1 is no CUDA driver: it lacks cuInit and others");
  }
  Machine::Cuda cuda;
  const int error = init(0);
  if (error == kNoDevice) return get_version(&cuda.driver_version), cuda;
  if (error != 0) {
    const char* name = nullptr;
    if (error_name != nullptr) error_name(error, &name);
    return absl::UnavailableError(
        absl::StrCat("cuInit fails: ", name == nullptr ? "" : absl::StrCat(name, " "), "(", error, ")"));
  }
  int count = 0;
  if (get_version(&cuda.driver_version) != 0 || get_count(&count) != 0) {
    return absl::UnavailableError("the CUDA driver does not tell its version or its devices");
  }
  for (int device = 0; device < count; ++device) {
    char name[128] = "";
    cuda.gpus.push_back(get_name(name, sizeof(name), device) == 0 ? name : "?");
  }
  return cuda;
}

absl::StatusOr<Machine::GpuLibrary> LoadNccl() {
  namespace nccl = collectives::nccl;
  const absl::StatusOr<cuda::Loaded<nccl::NcclApi>> library = nccl::LoadNccl();
  if (!library.ok()) return NotFoundIfAbsent(library.status());
  Machine::GpuLibrary found{0, library->path};
  if (library->api->GetVersion(&found.version) != nccl::Result::kSuccess) {
    return absl::UnavailableError(absl::StrCat(library->path, " does not tell its version"));
  }
  return found;
}

absl::StatusOr<Machine::GpuLibrary> LoadCudaRuntime() {
  const absl::StatusOr<cuda::Loaded<cuda::CudaApi>> library = cuda::LoadCuda();
  if (!library.ok()) return NotFoundIfAbsent(library.status());
  Machine::GpuLibrary found{0, library->path};
  if (library->api->RuntimeGetVersion(&found.version) != cuda::kCudaSuccess) {
    return absl::UnavailableError(absl::StrCat(library->path, " does not tell its version"));
  }
  return found;
}

}  // namespace tandem::launcher

// SPDX-License-Identifier: Apache-2.0
#include "python/src/client_parts.h"

#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "base/cuda/find_gpu.h"
#include "base/cuda/load_cuda.h"
#include "base/status.h"
#include "nanobind/stl/string.h"
#include "nanobind/stl/vector.h"
#include "python/src/errors.h"

namespace nb = nanobind;

namespace tandem::python {
namespace {

// Returns an array that Python has checked and keeps alive.
template <typename T>
T* At(nb::handle address) {
  return reinterpret_cast<T*>(nb::cast<uint64_t>(address));
}
template <typename T>
absl::Span<const T> SpanAt(nb::handle address, nb::handle count) {
  return {At<const T>(address), nb::cast<size_t>(count)};
}

// Returns the device of an array: that of GPU `gpu`, or the CPU for -1.
Device DeviceAt(nb::handle gpu) {
  const int index = nb::cast<int>(gpu);
  return index < 0 ? Device::Cpu() : Device::Cuda(index);
}
std::optional<void*> StreamAt(nb::handle stream) {
  if (stream.is_none()) return std::nullopt;
  return reinterpret_cast<void*>(nb::cast<uint64_t>(stream));
}

// Returns the CUDA runtime of this machine. The search for it is long, so that its first success is kept.
absl::StatusOr<std::shared_ptr<cuda::CudaApi>> Cuda() {
  static absl::Mutex& mutex = *new absl::Mutex;
  static auto& kept = *new std::shared_ptr<cuda::CudaApi>;
  absl::MutexLock lock(&mutex);
  if (kept == nullptr) {
    TANDEM_ASSIGN_OR_RETURN(cuda::Loaded<cuda::CudaApi> loaded, cuda::LoadCuda());
    kept = std::move(loaded.api);
  }
  return kept;
}

}  // namespace

std::vector<ps::PullPart> ParsePullParts(nb::list list) {
  std::vector<ps::PullPart> parts;
  parts.reserve(nb::len(list));
  for (nb::handle item : list) {
    const nb::tuple part = nb::borrow<nb::tuple>(item);
    parts.push_back({.table = nb::cast<std::string>(part[0]),
                     .ids = SpanAt<uint64_t>(part[1], part[2]),
                     .rows = At<float>(part[3]),
                     .pooling = static_cast<v1::Pooling>(nb::cast<int>(part[4])),
                     .offsets = SpanAt<uint32_t>(part[5], part[6]),
                     .repeats = true,
                     .device = DeviceAt(part[7]),
                     .stream = StreamAt(part[8])});
  }
  return parts;
}

PushParts ParsePushParts(nb::list list) {
  PushParts parsed;
  parsed.parts.reserve(nb::len(list));
  parsed.versions.reserve(nb::len(list));
  for (nb::handle item : list) {
    const nb::tuple part = nb::borrow<nb::tuple>(item);
    parsed.versions.push_back(nb::cast<std::vector<uint64_t>>(part[7]));
    parsed.parts.push_back({.table = nb::cast<std::string>(part[0]),
                            .ids = SpanAt<uint64_t>(part[1], part[2]),
                            .gradients = At<const float>(part[3]),
                            .pooling = static_cast<v1::Pooling>(nb::cast<int>(part[4])),
                            .offsets = SpanAt<uint32_t>(part[5], part[6]),
                            .pulled_versions = parsed.versions.back(),
                            .learning_rate_factor = nb::cast<float>(part[8]),
                            .device = DeviceAt(part[9]),
                            .stream = StreamAt(part[10])});
  }
  return parsed;
}

int GpuOf(uint64_t address, const std::string& what) {
  const absl::StatusOr<std::shared_ptr<cuda::CudaApi>> cuda = Cuda();
  RaiseIfError(cuda.status());
  const std::optional<int> gpu = cuda::FindGpu(cuda->get(), reinterpret_cast<const void*>(address));
  if (!gpu.has_value()) {
    Raise(absl::InvalidArgumentError(
        absl::StrCat(what, " has __cuda_array_interface__, but is not in the memory of a GPU")));
  }
  return *gpu;
}

nb::list ToPython(const ps::PullVersions& versions) {
  nb::list result;
  for (const std::vector<uint64_t>& part : versions) result.append(nb::tuple(nb::cast(part)));
  return result;
}

}  // namespace tandem::python

// SPDX-License-Identifier: Apache-2.0
#include "python/src/client_parts.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/types/span.h"
#include "nanobind/stl/string.h"
#include "nanobind/stl/vector.h"

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
                     .repeats = true});
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
                            .learning_rate_factor = nb::cast<float>(part[8])});
  }
  return parsed;
}

nb::list ToPython(const ps::PullVersions& versions) {
  nb::list result;
  for (const std::vector<uint64_t>& part : versions) result.append(nb::tuple(nb::cast(part)));
  return result;
}

}  // namespace tandem::python

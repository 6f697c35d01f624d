// SPDX-License-Identifier: Apache-2.0
#include "ps/storage/admission_filter.h"

#include <algorithm>
#include <cstring>

namespace tandem::ps {
namespace {

constexpr size_t kBlock = 64;

}  // namespace

std::string AdmissionFilter::Patch(std::vector<uint8_t> before, const std::vector<uint8_t>& now) {
  std::string patch;
  // Counters that were not allocated yet were all zero.
  before.resize(now.size());
  for (size_t begin = 0; begin < now.size(); begin += kBlock) {
    const size_t size = std::min(kBlock, now.size() - begin);
    if (std::memcmp(now.data() + begin, before.data() + begin, size) == 0) continue;
    const auto block = static_cast<uint32_t>(begin / kBlock);
    patch.append(reinterpret_cast<const char*>(&block), sizeof(block));
    patch.append(reinterpret_cast<const char*>(now.data() + begin), size);
    patch.append(kBlock - size, '\0');
  }
  return patch;
}

bool PatchFilter(absl::string_view patch, size_t bytes, std::string* saved) {
  if (saved->empty()) saved->resize(bytes, '\0');
  if (saved->size() != bytes || patch.size() % (sizeof(uint32_t) + kBlock) != 0) return false;
  for (; !patch.empty(); patch.remove_prefix(sizeof(uint32_t) + kBlock)) {
    uint32_t block;
    std::memcpy(&block, patch.data(), sizeof(block));
    const size_t begin = size_t{block} * kBlock;
    if (begin >= bytes) return false;
    std::memcpy(saved->data() + begin, patch.data() + sizeof(block), std::min(kBlock, bytes - begin));
  }
  return true;
}

}  // namespace tandem::ps

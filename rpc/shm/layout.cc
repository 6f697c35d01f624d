// SPDX-License-Identifier: Apache-2.0
#include "rpc/shm/layout.h"

#include "absl/status/status.h"
#include "absl/strings/str_cat.h"
#include "base/round_up.h"

namespace tandem::rpc::shm {
namespace {

constexpr size_t kHugePage = size_t{2} << 20;

}  // namespace

absl::StatusOr<Geometry> Geometry::Make(uint64_t records_bytes, uint64_t payload_bytes) {
  if (records_bytes < (32u << 10) || records_bytes > (16u << 20) ||
      (records_bytes & (records_bytes - 1)) != 0) {
    return absl::InvalidArgumentError(absl::StrCat("a ring of ", records_bytes,
                                                   " bytes of records; expected a power of two from 32 KiB "
                                                   "to 16 MiB"));
  }
  if (payload_bytes < kHugePage || payload_bytes > (uint64_t{1} << 30) || payload_bytes % kHugePage != 0) {
    return absl::InvalidArgumentError(absl::StrCat("payload memory of ", payload_bytes,
                                                   " bytes; expected a multiple of 2 MiB up to 1 GiB"));
  }
  Geometry g;
  g.records_bytes = records_bytes;
  g.payload_bytes = payload_bytes;
  g.pages = payload_bytes / kPage;
  size_t end = RoundUp(sizeof(Control), kPage);
  for (size_t& offset : g.records_offset) {
    offset = end;
    end += records_bytes;
  }
  for (size_t& offset : g.released_offset) {
    offset = end;
    end = RoundUp(end + g.pages * sizeof(std::atomic<uint32_t>), kPage);
  }
  end = RoundUp(end, kHugePage);
  for (size_t& offset : g.payload_offset) {
    offset = end;
    end += payload_bytes;
  }
  g.total_bytes = end;
  return g;
}

}  // namespace tandem::rpc::shm

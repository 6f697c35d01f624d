// SPDX-License-Identifier: Apache-2.0
// A ring with any contents and any claimed position, as the receiver over shared memory reads it.

#include <algorithm>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <string>

#include "absl/status/statusor.h"
#include "base/status.h"
#include "rpc/shm/layout.h"
#include "rpc/shm/record.h"
#include "tests/fuzz/byte_source.h"
#include "tests/fuzz/targets.h"

namespace tandem::fuzz {

// Input: u64 bytes that are claimed to be written (a multiple of 4; otherwise as many as there are), then the
// ring.
void FuzzRing(Input input) {
  using namespace rpc::shm;  // NOLINT: a target is one function
  constexpr size_t kRing = 32 << 10;
  constexpr size_t kPayload = 2 << 20;
  ByteSource source(input);
  const uint64_t claimed = source.Take<uint64_t>();
  const Input bytes = source.Rest();
  std::string ring(kRing, '\0');
  if (!bytes.empty()) std::memcpy(ring.data(), bytes.data(), std::min(bytes.size(), kRing));
  std::atomic<uint64_t> written{claimed % 4 != 0 ? bytes.size() / kRecordUnit * kRecordUnit : claimed};
  std::atomic<uint64_t> read{0};
  RecordReader reader(ring.data(), kRing, &written, &read);
  std::string copy;
  Record record;
  while (true) {
    const absl::StatusOr<bool> next = reader.Next(&copy);
    if (!next.ok() || !*next) break;
    if (!ParseRecord(copy, kPayload, &record).ok()) continue;
    size_t inline_bytes = 0;
    for (const SegmentRef& segment : record.segments) {
      if (segment.block == SegmentRef::kInline) {
        inline_bytes += segment.bytes;
      } else {
        TANDEM_CHECK(segment.offset + segment.bytes <= kPayload && segment.block < kPayload / kPage);
      }
    }
    TANDEM_CHECK(inline_bytes == record.inline_bytes.size());
    // A record that was read can be written again and is then the same.
    std::string again(kMaxRecord, '\0');
    again.resize(EncodeRecord(record, again.data()));
    Record second;
    TANDEM_CHECK(ParseRecord(again, kPayload, &second).ok() && second.call == record.call);
  }
  TANDEM_CHECK(read.load() <= kRing);
}

}  // namespace tandem::fuzz

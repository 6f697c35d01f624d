// SPDX-License-Identifier: Apache-2.0
#include "ps/wire/id_codec.h"

#include <algorithm>
#include <cstring>

#include "absl/numeric/bits.h"
#include "absl/strings/str_cat.h"

namespace tandem::ps {
namespace {

constexpr size_t kBlockIds = 128;
constexpr size_t kHeadBytes = 1 + sizeof(uint64_t);
// A value of up to 56 bits that begins at any bit of a byte lies within 8 bytes, so one load reads it. Wider
// values are sent as 64 bits.
constexpr uint32_t kMaxWidth = 56;
constexpr uint32_t kWhole = 64;
constexpr uint8_t kDeltas = 0x80;

uint32_t WidthOf(uint64_t values_or) {
  const uint32_t width = static_cast<uint32_t>(absl::bit_width(values_or));
  return width > kMaxWidth ? kWhole : width;
}
size_t BodyBytes(size_t ids, uint32_t width) { return (ids * width + 7) / 8; }

uint64_t LoadWord(const char* at) {
  uint64_t word;
  std::memcpy(&word, at, sizeof(word));
  return word;
}
void StoreWord(uint64_t word, char* at) { std::memcpy(at, &word, sizeof(word)); }

// Packs value(i) for i in [0, n), in ascending order. Writes up to 7 bytes past the body, which the next
// block overwrites.
template <class Value>
void PackBits(size_t n, uint32_t width, const Value& value, char* out) {
  if (width == kWhole) {
    for (size_t i = 0; i < n; ++i, out += sizeof(uint64_t)) StoreWord(value(i), out);
    return;
  }
  uint64_t carry = 0;  // bits of the byte at `out` that are already taken
  uint32_t taken = 0;
  for (size_t i = 0; i < n; ++i) {
    const uint64_t word = carry | value(i) << taken;
    StoreWord(word, out);
    taken += width;
    const uint32_t full = taken / 8;  // bytes; at most 7, so that the shift is defined
    out += full;
    taken %= 8;
    carry = word >> (8 * full);
  }
}

// Calls take(i, value) for each of n values. Reads up to 7 bytes past the body.
template <class Take>
void UnpackBits(const char* in, size_t n, uint32_t width, const Take& take) {
  if (width == kWhole) {
    for (size_t i = 0; i < n; ++i) take(i, LoadWord(in + i * sizeof(uint64_t)));
    return;
  }
  const uint64_t mask = (uint64_t{1} << width) - 1;
  size_t bit = 0;
  for (size_t i = 0; i < n; ++i, bit += width) take(i, LoadWord(in + bit / 8) >> (bit % 8) & mask);
}

void UnpackBlock(const char* body, size_t n, uint8_t head, uint64_t base, uint64_t* out) {
  const uint32_t width = head & ~kDeltas;
  if ((head & kDeltas) == 0) {
    UnpackBits(body, n, width, [&](size_t i, uint64_t value) { out[i] = base + value; });
  } else {
    UnpackBits(body, n, width, [&](size_t i, uint64_t value) { out[i] = base += value; });
  }
}

}  // namespace

size_t IdPacker::Plan(absl::Span<const uint64_t> ids) {
  blocks_.clear();
  size_t bytes = 0;
  for (size_t first = 0; first < ids.size(); first += kBlockIds) {
    const absl::Span<const uint64_t> block = ids.subspan(first, kBlockIds);
    uint64_t least = block[0], greatest = block[0], deltas = 0;
    for (size_t i = 1; i < block.size(); ++i) {
      least = std::min(least, block[i]);
      greatest = std::max(greatest, block[i]);
      deltas |= block[i] - block[i - 1];
    }
    const uint32_t frame_width = WidthOf(greatest - least);
    const uint32_t delta_width = WidthOf(deltas);
    // Deltas must be added one after the other, which is slower, so they are used only if they are shorter.
    const bool use_deltas = delta_width < frame_width;
    blocks_.push_back({use_deltas ? block[0] : least,
                       static_cast<uint8_t>(use_deltas ? delta_width | kDeltas : frame_width)});
    bytes += kHeadBytes + BodyBytes(block.size(), std::min(delta_width, frame_width));
  }
  return bytes;
}

void IdPacker::Write(absl::Span<const uint64_t> ids, char* out) const {
  for (size_t b = 0; b < blocks_.size(); ++b) {
    const absl::Span<const uint64_t> block = ids.subspan(b * kBlockIds, kBlockIds);
    const Block& plan = blocks_[b];
    const uint32_t width = plan.head & ~kDeltas;
    *out++ = static_cast<char>(plan.head);
    StoreWord(plan.base, out);
    out += sizeof(uint64_t);
    // The last block is packed in a buffer with space behind it, because PackBits writes past the body.
    char last[kBlockIds * sizeof(uint64_t) + sizeof(uint64_t)];
    const bool is_last = b + 1 == blocks_.size();
    char* const body = is_last ? last : out;
    if ((plan.head & kDeltas) == 0) {
      PackBits(
          block.size(), width, [&](size_t i) { return block[i] - plan.base; }, body);
    } else {
      PackBits(
          block.size(), width, [&](size_t i) { return i == 0 ? 0 : block[i] - block[i - 1]; }, body);
    }
    const size_t bytes = BodyBytes(block.size(), width);
    if (is_last) std::memcpy(out, last, bytes);
    out += bytes;
  }
}

bool PackingPays(size_t packed_bytes, size_t count) {
  return packed_bytes <= count * sizeof(uint64_t) / 8 * 5;
}

uint64_t MinPackedBytes(uint64_t count) { return (count + kBlockIds - 1) / kBlockIds * kHeadBytes; }
uint64_t MaxPackedBytes(uint64_t count) { return MinPackedBytes(count) + count * sizeof(uint64_t); }

absl::Status UnpackIds(absl::string_view packed, uint64_t count, uint64_t* out) {
  const char* in = packed.data();
  const char* const end = in + packed.size();
  for (uint64_t done = 0; done < count; done += kBlockIds) {
    const size_t n = static_cast<size_t>(std::min<uint64_t>(kBlockIds, count - done));
    const auto left = static_cast<size_t>(end - in);
    if (left < kHeadBytes) {
      return absl::InvalidArgumentError(absl::StrCat("packed ids end after ", done, " of ", count));
    }
    const auto head = static_cast<uint8_t>(*in);
    const uint32_t width = head & ~kDeltas;
    if (width > kMaxWidth && width != kWhole) {
      return absl::InvalidArgumentError(
          absl::StrCat("packed ids ", done, " ... have width ", width, ", expected 0 to 56, or 64"));
    }
    const uint64_t base = LoadWord(in + 1);
    const size_t bytes = BodyBytes(n, width);
    if (left - kHeadBytes < bytes) {
      return absl::InvalidArgumentError(absl::StrCat("packed ids ", done, " ... of width ", width, " need ",
                                                     bytes, " bytes, ", left - kHeadBytes, " are left"));
    }
    in += kHeadBytes;
    if (left - kHeadBytes >= bytes + sizeof(uint64_t)) {
      UnpackBlock(in, n, head, base, out + done);
    } else {
      char padded[kBlockIds * sizeof(uint64_t) + sizeof(uint64_t)] = {};
      std::memcpy(padded, in, bytes);
      UnpackBlock(padded, n, head, base, out + done);
    }
    in += bytes;
  }
  if (in != end) {
    return absl::InvalidArgumentError(
        absl::StrCat("packed ids have ", end - in, " bytes more than their ", count, " ids need"));
  }
  return absl::OkStatus();
}

}  // namespace tandem::ps

// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_WIRE_OCCURRENCE_CODEC_H_
#define TANDEM_PS_WIRE_OCCURRENCE_CODEC_H_

// Packs the numbers of occurrences of a push's ids (v1::PushSlice.occurrence_bytes) into the fewest bytes
// that hold the largest of them. Most ids of a batch occur less than 256 times.

#include <cstddef>
#include <cstdint>

#include "absl/types/span.h"

namespace tandem::ps {

// Returns the width of the numbers in bytes: 1, 2 or 4, or 0 if all are 1 and need not be sent.
uint32_t OccurrenceWidth(absl::Span<const uint32_t> occurrences);

// Returns whether numbers may have this width in bytes.
inline bool IsOccurrenceWidth(uint32_t width) { return width == 1 || width == 2 || width == 4; }

// Returns the size of the packed numbers in bytes, a multiple of 4 so that floats behind them are aligned.
inline uint64_t PackedOccurrenceBytes(uint64_t count, uint32_t width) { return (count * width + 3) / 4 * 4; }

// Writes the numbers to `out`, which has PackedOccurrenceBytes(occurrences.size(), width) bytes. Requires
// that `width` is at least OccurrenceWidth(occurrences), and valid.
void PackOccurrences(absl::Span<const uint32_t> occurrences, uint32_t width, char* out);

// Unpacks `count` numbers of a valid width. Any bytes decode to some numbers, of which some may be 0.
void UnpackOccurrences(const char* packed, size_t count, uint32_t width, uint32_t* occurrences);

}  // namespace tandem::ps

#endif  // TANDEM_PS_WIRE_OCCURRENCE_CODEC_H_

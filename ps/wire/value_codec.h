// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_WIRE_VALUE_CODEC_H_
#define TANDEM_PS_WIRE_VALUE_CODEC_H_

// Encodes and decodes rows of floats for messages between workers and parameter servers. Rows lie back to
// back, without padding, in little-endian order:
//
//   VALUES_F32    f32[dim]                            the bits unchanged
//   VALUES_F16    binary16[dim]                       rounded to nearest, ties to even
//   VALUES_BF16   u16[dim], a float's upper half      rounded to nearest, ties to even
//   VALUES_INT8   f32 scale, then i8[dim]             value = scale * code
//
// F16 and BF16: NaN stays NaN (quiet) and Inf stays Inf, so that the receiver can refuse it. A finite number
// beyond the range becomes the largest finite number. Subnormals are kept.
//
// INT8: scale is the row's largest magnitude / 127. The code is the integer nearest to value / scale (ties to
// even), -127 .. 127. Special rows:
//
//   - a row that contains NaN or Inf has scale NaN, and all its numbers decode to NaN;
//   - a row whose largest magnitude is below 2^-119, so that its scale would be subnormal, is sent as zeros;
//   - if the largest magnitude is above 2^127, magnitudes above 2^127 are sent as 2^127.
//
// The resulting bits are the same with every instruction set. The functions are pure and thread-safe.
// Dettmers (ICLR 2016) compares 8-bit formats for gradients; scales for each row are those of quantised
// embedding tables (Guan et al., 2019).

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/bytes.h"
#include "tandem/v1/parameter_server.pb.h"

namespace tandem::ps {

namespace v1 = ::tandem::v1;

// Gradients of this magnitude come from a model that has diverged. A few of them would leave infinities in
// rows or optimizer state, so they are refused like infinite ones.
inline constexpr float kMaxGradient = 0x1p60f;

// Returns "f32", "f16", "bf16" or "int8", or "unknown" for any other value that a peer may send.
absl::string_view Name(v1::ValueFormat format);

// Returns the size of one row in bytes: 4 dim, 2 dim, 2 dim or 4 + dim. Requires one of the four formats.
size_t RowBytes(v1::ValueFormat format, size_t dim);

// Encodes `rows` rows to `out`, which has rows * RowBytes(format, dim) bytes at any alignment. `positions` is
// u32[rows] or nullptr. Row i is values[positions[i] * dim ...], or values[i * dim ...] without positions.
void EncodeRows(v1::ValueFormat format, const float* values, const uint32_t* positions, size_t rows,
                size_t dim, char* out);

// Decodes `rows` rows from the rows * RowBytes(format, dim) bytes at `in`, which may have any alignment. Row
// i goes to values[positions[i] * dim ...], or to values[i * dim ...] without positions. Any bytes are valid
// rows, but their numbers may be NaN or Inf.
void DecodeRows(v1::ValueFormat format, const char* in, const uint32_t* positions, size_t rows, size_t dim,
                float* values);

// As above, for a message that is received in chunks. Returns false and reads nothing if fewer bytes remain.
bool DecodeRows(v1::ValueFormat format, BytesReader* reader, const uint32_t* positions, size_t rows,
                size_t dim, float* values);

// Returns the largest magnitude of the values: NaN if any is NaN, else Inf if any is infinite; 0 for no
// values.
float LargestMagnitude(absl::Span<const float> values);

}  // namespace tandem::ps

#endif  // TANDEM_PS_WIRE_VALUE_CODEC_H_

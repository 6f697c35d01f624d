#ifndef TANDEM_PS_WIRE_VALUE_CODEC_H_
#define TANDEM_PS_WIRE_VALUE_CODEC_H_

// Rows of floats as they travel between workers and parameter servers. Rows lie back to back, without
// padding, everything little-endian:
//
//   VALUES_F32    f32[dim]                            the bits as they are
//   VALUES_F16    binary16[dim]                       to nearest, ties to even
//   VALUES_BF16   u16[dim], a float's upper half      to nearest, ties to even
//   VALUES_INT8   f32 scale, then i8[dim]             value = scale * code
//
// What is no ordinary number:
//   F16, BF16   NaN stays NaN (quiet) and Inf stays Inf, so that whoever receives it can refuse it; a finite
//   number beyond the range becomes the largest finite one. Subnormals are kept.
//   INT8   scale is the row's largest magnitude / 127, code the nearest integer to value / scale (ties to
//   even), -127 .. 127. A row with a NaN or Inf among its numbers has scale NaN and decodes to NaN
//   throughout. A row whose largest magnitude is below 2^-119 (its scale would be subnormal) is sent as
//   zeros, a magnitude above 2^127 as 2^127.
//
// The same bits with every instruction set. Pure functions, safe from any thread. (8-bit codes with a scale
// for each row: Dettmers, ICLR 2016, compares such formats for gradients; per-row scales are those of
// quantised embedding tables, Guan et al., 2019.)

#include <cstddef>
#include <cstdint>

#include "absl/strings/string_view.h"
#include "absl/types/span.h"
#include "base/bytes.h"
#include "tandem/v1/parameter_server.pb.h"

namespace tandem::ps {

namespace v1 = ::tandem::v1;

// "f32", "f16", "bf16", "int8"; "unknown" for anything else that a peer may send.
absl::string_view Name(v1::ValueFormat format);

// Bytes of one row of `dim` numbers: 4 dim, 2 dim, 2 dim, 4 + dim. `format` is one of the four.
size_t RowBytes(v1::ValueFormat format, size_t dim);

// Writes `rows` rows one after the other: row i is values[i * dim ...] or, with `positions` (u32[rows], else
// nullptr), values[positions[i] * dim ...]. `out` has rows * RowBytes bytes, at any alignment.
void EncodeRows(v1::ValueFormat format, const float* values, const uint32_t* positions, size_t rows,
                size_t dim, char* out);

// The inverse: row i goes to values[i * dim ...] or values[positions[i] * dim ...]. Reads rows * RowBytes
// bytes at `in`, at any alignment; any bytes are a row, though their numbers need not be finite.
void DecodeRows(v1::ValueFormat format, const char* in, const uint32_t* positions, size_t rows, size_t dim,
                float* values);

// The same from a message that lies in pieces. False, with nothing read, when fewer bytes remain.
bool DecodeRows(v1::ValueFormat format, BytesReader* reader, const uint32_t* positions, size_t rows,
                size_t dim, float* values);

// The largest magnitude among them: NaN when any is NaN, else Inf when any is; 0 for none.
float LargestMagnitude(absl::Span<const float> values);

}  // namespace tandem::ps

#endif  // TANDEM_PS_WIRE_VALUE_CODEC_H_

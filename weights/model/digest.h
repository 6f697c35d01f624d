// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WEIGHTS_MODEL_DIGEST_H_
#define TANDEM_WEIGHTS_MODEL_DIGEST_H_

// Digests of models: 64-bit hashes of names, shapes and values, by which a store and its readers notice
// values that were damaged on their way. They are no protection against forgery.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "absl/status/status.h"
#include "absl/strings/string_view.h"
#include "absl/types/span.h"

namespace tandem::weights {

struct TensorInfo;

// The kinds of digests. The numbers are those of the wire.
enum class DigestKind : uint32_t {
  // One hash over all values in their order (HashBytes). Versions of publishers of earlier releases have it.
  kSerial = 0,
  // The values are divided into pieces of kDigestPieceBytes, the last one may be shorter. Each piece is
  // hashed
  // by itself, in lanes of 64-bit words, so that several threads and the units of a core work at the same
  // time. The digest is the hash of the hashes of the pieces.
  //
  // With words of 8 bytes, little-endian, the last one filled up with zeros, and Mix64 of base/random.h:
  //
  //   layout = 0; for each tensor: layout = HashBytes(name, layout),
  //            for each dimension d: layout = Mix64(layout, d); layout = Mix64(layout, dimensions)
  //   piece:   lane[j] = Mix64(layout, j), for j in [0, 8);
  //            for each word w[i]: h = (lane[i % 8] ^ w[i]) * 0x9e3779b97f4a7c15; lane[i % 8] = h ^ (h >>
  //            32);
  //            piece = Mix64(layout, bytes of the piece); for each lane: piece = Mix64(piece ^ lane[j])
  //   digest = Mix64(layout, bytes of all values); for each piece: digest = Mix64(digest ^ piece)
  //
  // The last 64 bytes of a piece are filled up with zeros, and all 8 of their words are hashed.
  kPieces = 1,
};

inline constexpr size_t kDigestPieceBytes = size_t{64} << 10;

// Returns InvalidArgument, which names the kinds that are known, for a kind of a later release.
absl::Status CheckDigestKind(DigestKind kind);

// Returns the digest of the values of `tensors`. `kind` must be known. Equal models have equal digests on
// every machine. kPieces: uses several threads for large models.
uint64_t DigestOf(DigestKind kind, absl::Span<const TensorInfo> tensors, absl::Span<const float> values);

// Reads parts, one after the other, as one run of bytes. The parts must outlive the reader. Not thread-safe.
class PartsReader {
 public:
  // Begins at byte `offset` of the run.
  explicit PartsReader(absl::Span<const absl::string_view> parts, size_t offset = 0);
  // Copies the next `size` bytes to `to`. The parts must have as many.
  void Copy(char* to, size_t size);

 private:
  const absl::Span<const absl::string_view> parts_;
  size_t part_ = 0, offset_ = 0;
};

// Computes the digest of kind kPieces of values that become known piece by piece, in any order. Several
// threads may add different pieces at the same time.
class PiecesDigest {
 public:
  // `bytes` is the size of all values.
  PiecesDigest(absl::Span<const TensorInfo> tensors, size_t bytes);

  // Returns true if [offset, offset + size) lies within the values and consists of whole pieces.
  bool IsWhole(uint64_t offset, uint64_t size) const;
  // Adds the pieces of [offset, offset + size), which must be whole. `values` is where all values begin.
  void Add(const char* values, size_t offset, size_t size);
  // Copies the bytes of this range from `parts` to their place in `values`, and adds their pieces. A piece is
  // hashed while the cache still has it, so that this is about as fast as copying.
  void Copy(char* values, size_t offset, size_t size, PartsReader* parts);
  // Returns true if all pieces have been added.
  bool complete() const { return std::find(added_.begin(), added_.end(), 0) == added_.end(); }
  // Returns the digest. All pieces must have been added.
  uint64_t Digest() const;

 private:
  const uint64_t layout_;
  const size_t bytes_;
  std::vector<uint64_t> pieces_;
  std::vector<uint8_t> added_;  // not bool, whose elements threads could not set at the same time
};

// Copies the bytes of `parts`, one after the other, to `values`, and returns the digest of kind kPieces of
// the copy. Uses several threads for large models.
uint64_t CopyWithDigest(absl::Span<const TensorInfo> tensors, absl::Span<const absl::string_view> parts,
                        float* values);

}  // namespace tandem::weights

#endif  // TANDEM_WEIGHTS_MODEL_DIGEST_H_

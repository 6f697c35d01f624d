// SPDX-License-Identifier: Apache-2.0
#include "weights/model/digest.h"

#include <algorithm>
#include <cstring>
#include <system_error>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/copy_bytes.h"
#include "base/random.h"
#include "weights/model/model.h"

namespace tandem::weights {
namespace {

constexpr size_t kLanes = 8;
constexpr size_t kStripe = kLanes * sizeof(uint64_t);
constexpr uint64_t kMultiplier = 0x9e3779b97f4a7c15ull;
// A thread that has less to do is not started.
constexpr size_t kPiecesPerThread = 32;
constexpr size_t kMaxThreads = 4;

uint64_t LayoutOf(absl::Span<const TensorInfo> tensors) {
  uint64_t layout = 0;
  for (const TensorInfo& tensor : tensors) {
    layout = HashBytes(tensor.name, layout);
    for (const int64_t dimension : tensor.shape) layout = Mix64(layout, static_cast<uint64_t>(dimension));
    layout = Mix64(layout, tensor.shape.size());
  }
  return layout;
}

void HashStripe(const char* bytes, uint64_t (&lanes)[kLanes]) {
  uint64_t words[kLanes];
  std::memcpy(words, bytes, kStripe);
  for (size_t j = 0; j < kLanes; ++j) {
    const uint64_t h = (lanes[j] ^ words[j]) * kMultiplier;
    lanes[j] = h ^ (h >> 32);
  }
}

uint64_t HashPiece(const char* bytes, size_t size, uint64_t layout) {
  uint64_t lanes[kLanes];
  for (size_t j = 0; j < kLanes; ++j) lanes[j] = Mix64(layout, j);
  size_t done = 0;
  for (; size - done >= kStripe; done += kStripe) HashStripe(bytes + done, lanes);
  if (done < size) {
    char last[kStripe] = {};
    std::memcpy(last, bytes + done, size - done);
    HashStripe(last, lanes);
  }
  uint64_t piece = Mix64(layout, size);
  for (const uint64_t lane : lanes) piece = Mix64(piece ^ lane);
  return piece;
}

// Returns the digest of `size` bytes at `bytes`. Copies `parts` to `copy`, the same memory, before, unless
// that is null.
uint64_t HashPieces(absl::Span<const TensorInfo> tensors, absl::Span<const absl::string_view> parts,
                    char* copy, const char* bytes, size_t size) {
  PiecesDigest digest(tensors, size);
  const size_t pieces = (size + kDigestPieceBytes - 1) / kDigestPieceBytes;
  const auto add = [&](size_t begin, size_t end) {
    const size_t offset = begin * kDigestPieceBytes,
                 length = std::min(end * kDigestPieceBytes, size) - offset;
    if (copy == nullptr) return digest.Add(bytes, offset, length);
    PartsReader reader(parts, offset);
    digest.Copy(copy, offset, length, &reader);
  };
  const size_t threads = std::clamp<size_t>(
      std::min<size_t>(pieces / kPiecesPerThread, std::thread::hardware_concurrency()), 1, kMaxThreads);
  std::vector<std::thread> others;
  others.reserve(threads);
  size_t shared = 1;
  try {
    for (; shared < threads; ++shared)
      others.emplace_back(add, pieces * shared / threads, pieces * (shared + 1) / threads);
  } catch (const std::system_error&) {
    // There may be no further threads, as by a container's limit. This one does their part.
  }
  add(0, pieces / threads);
  if (shared < threads) add(pieces * shared / threads, pieces);
  for (std::thread& other : others) other.join();
  return digest.Digest();
}

}  // namespace

PartsReader::PartsReader(absl::Span<const absl::string_view> parts, size_t offset) : parts_(parts) {
  while (part_ < parts_.size() && offset >= parts_[part_].size()) offset -= parts_[part_++].size();
  offset_ = offset;
}

void PartsReader::Copy(char* to, size_t size) {
  while (size > 0) {
    const absl::string_view left = parts_[part_].substr(offset_);
    const size_t taken = std::min(left.size(), size);
    CopyBytes(to, left.data(), taken);  // an empty part may have no memory
    to += taken;
    size -= taken;
    offset_ += taken;
    if (offset_ == parts_[part_].size()) ++part_, offset_ = 0;
  }
}

PiecesDigest::PiecesDigest(absl::Span<const TensorInfo> tensors, size_t bytes)
    : layout_(LayoutOf(tensors)),
      bytes_(bytes),
      pieces_((bytes + kDigestPieceBytes - 1) / kDigestPieceBytes),
      added_(pieces_.size()) {}

bool PiecesDigest::IsWhole(uint64_t offset, uint64_t size) const {
  return offset <= bytes_ && size <= bytes_ - offset && offset % kDigestPieceBytes == 0 &&
         (size % kDigestPieceBytes == 0 || offset + size == bytes_);
}

void PiecesDigest::Add(const char* values, size_t offset, size_t size) {
  for (const size_t end = offset + size; offset < end; offset += kDigestPieceBytes) {
    const size_t i = offset / kDigestPieceBytes;
    pieces_[i] = HashPiece(values + offset, std::min(kDigestPieceBytes, end - offset), layout_);
    added_[i] = 1;
  }
}

void PiecesDigest::Copy(char* values, size_t offset, size_t size, PartsReader* parts) {
  for (const size_t end = offset + size; offset < end; offset += kDigestPieceBytes) {
    const size_t length = std::min(kDigestPieceBytes, end - offset);
    parts->Copy(values + offset, length);
    Add(values, offset, length);
  }
}

uint64_t PiecesDigest::Digest() const {
  uint64_t digest = Mix64(layout_, bytes_);
  for (const uint64_t piece : pieces_) digest = Mix64(digest ^ piece);
  return digest;
}

absl::Status CheckDigestKind(DigestKind kind) {
  if (kind == DigestKind::kSerial || kind == DigestKind::kPieces) return absl::OkStatus();
  return absl::InvalidArgumentError(
      absl::StrCat("the digest is of kind ", static_cast<uint32_t>(kind),
                   ", and this release knows the kinds 0 and 1; stores and readers must be of the release of "
                   "their publishers, or later"));
}

uint64_t DigestOf(DigestKind kind, absl::Span<const TensorInfo> tensors, absl::Span<const float> values) {
  const char* const bytes = reinterpret_cast<const char*>(values.data());
  const size_t size = values.size() * sizeof(float);
  if (kind == DigestKind::kPieces) return HashPieces(tensors, {}, nullptr, bytes, size);
  return HashBytes({bytes, size}, LayoutOf(tensors));
}

uint64_t CopyWithDigest(absl::Span<const TensorInfo> tensors, absl::Span<const absl::string_view> parts,
                        float* values) {
  size_t size = 0;
  for (const absl::string_view part : parts) size += part.size();
  char* const copy = reinterpret_cast<char*>(values);
  return HashPieces(tensors, parts, copy, copy, size);
}

}  // namespace tandem::weights

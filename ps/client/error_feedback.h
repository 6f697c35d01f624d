// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_CLIENT_ERROR_FEEDBACK_H_
#define TANDEM_PS_CLIENT_ERROR_FEEDBACK_H_

// Error feedback for lossy pushes (Seide et al., Interspeech 2014; Karimireddy et al., ICML 2019). The worker
// keeps the part of an id's gradient that a coarse format loses, and adds it to the id's next gradient before
// encoding:
//
//   sent = encode(gradient + residual);   residual = gradient + residual - decode(sent)
//
// So in the long run nothing is lost, only delayed: small values next to large ones add up until they can be
// represented.
//
// A push that fails does not change the residuals that its encoding left. Its gradients are lost, as with
// f32, including the residuals that were added to them. (It is unknown whether a push that timed out was
// applied, so restoring them could apply them twice.) Repeated calls send the bytes that were encoded first.
// Residuals belong to one worker and are not part of checkpoints.

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "tandem/v1/parameter_server.pb.h"

namespace tandem::ps {

namespace v1 = ::tandem::v1;

// The state of error feedback of one table.
struct ErrorFeedbackStatistics {
  uint64_t rows = 0;          // residuals held
  uint64_t bytes = 0;         // memory
  uint64_t dropped_rows = 0;  // residuals dropped for lack of space, since the start
};

// The residuals of one table: [dim] floats per id, 4 * dim + about 50 bytes. When the byte budget is used up,
// a new residual replaces that of an id that was not pushed recently (second chance). Thread-safe; calls
// block each other.
class ErrorFeedback {
 public:
  ErrorFeedback(size_t dim, size_t byte_budget);

  // Encodes the gradients, with the residuals of their ids added, to `out`, and replaces the residuals by the
  // new errors. Row i is gradients[i * dim ...] or, with `positions`, gradients[positions[i] * dim ...], and
  // belongs to ids[i]. The ids should be distinct. A row with a NaN or Inf, which the server refuses, changes
  // no residual.
  void Encode(v1::ValueFormat format, absl::Span<const uint64_t> ids, const float* gradients,
              const uint32_t* positions, char* out);

  ErrorFeedbackStatistics statistics() const;

 private:
  static constexpr uint32_t kNone = ~uint32_t{0};
  static constexpr size_t kChunkRows = 256;
  struct Cell {
    uint64_t id;
    uint32_t row = kNone;  // kNone: empty
  };

  float* Residual(uint32_t row) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return chunks_[row / kChunkRows].get() + (row % kChunkRows) * dim_;
  }
  // Returns the cell at which the search for an id begins.
  size_t Home(uint64_t id) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  uint32_t Find(uint64_t id) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns a row for an id that has none: a new one, or that of another id. kNone if the budget is too small
  // for any row.
  uint32_t Insert(uint64_t id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Place(uint64_t id, uint32_t row) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Erase(uint64_t id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Makes space for one more row. Returns false if the budget does not allow it.
  bool Grow() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void EncodeBlock(v1::ValueFormat format, absl::Span<const uint64_t> ids, const float* gradients,
                   const uint32_t* positions, char* out) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  size_t BytesOf(size_t rows, size_t cells) const;

  const size_t dim_;
  const size_t byte_budget_;
  mutable absl::Mutex mutex_;
  std::vector<Cell> cells_ ABSL_GUARDED_BY(mutex_);  // linear probing; a power of two, at most half full
  std::vector<std::unique_ptr<float[]>> chunks_ ABSL_GUARDED_BY(mutex_);
  std::vector<uint64_t> row_ids_ ABSL_GUARDED_BY(mutex_);
  // [rows]: whether the row was used since the hand passed it.
  std::vector<uint8_t> pushed_ ABSL_GUARDED_BY(mutex_);
  // The next row that the second-chance search visits.
  size_t hand_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t dropped_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<float> sums_ ABSL_GUARDED_BY(mutex_);     // [block x dim]
  std::vector<float> decoded_ ABSL_GUARDED_BY(mutex_);  // [block x dim]
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_CLIENT_ERROR_FEEDBACK_H_

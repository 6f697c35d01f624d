#ifndef TANDEM_PS_CLIENT_ERROR_FEEDBACK_H_
#define TANDEM_PS_CLIENT_ERROR_FEEDBACK_H_

// Error feedback for lossy pushes (Seide et al., Interspeech 2014; Karimireddy et al., ICML 2019): what a
// coarse format loses of an id's gradient is kept at the worker and added to that id's next gradient before
// it is encoded,
//
//   sent = encode(gradient + residual);   residual = gradient + residual - decode(sent)
//
// so that on the whole nothing is lost, only late: small numbers beside large ones add up until they are
// seen.
//
// A push that fails keeps the residuals it left when it was encoded: what it carried is lost, as with f32,
// with the little of earlier gradients that was in it. (Whether a push that timed out was applied is not
// known, so giving it back could apply it twice.) Retries send the bytes that were encoded first. Residuals
// are a worker's own; they are in no checkpoint.

#include <cstdint>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "tandem/v1/parameter_server.pb.h"

namespace tandem::ps {

namespace v1 = ::tandem::v1;

struct ErrorFeedbackStatistics {
  uint64_t rows = 0;          // residuals held
  uint64_t bytes = 0;         // of memory
  uint64_t dropped_rows = 0;  // residuals forgotten for want of room, since the start
};

// The residuals of one table: [dim] floats an id, 4 dim + about 50 bytes. Past the byte budget the residual
// of an id that was not pushed lately gives way (second chance). Thread-safe; calls exclude each other.
class ErrorFeedback {
 public:
  ErrorFeedback(size_t dim, size_t byte_budget);

  // EncodeRows of the gradients with their ids' residuals added, which are replaced by what is lost now. Row
  // i is gradients[i * dim ...] or, with `positions`, gradients[positions[i] * dim ...], and is that of
  // ids[i], which should be distinct. A row that is NaN or Inf, which the server will refuse, changes no
  // residual.
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
  size_t Home(uint64_t id) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  uint32_t Find(uint64_t id) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // A row for an id that has none: a new one, or that of another id; kNone when the budget allows not one.
  uint32_t Insert(uint64_t id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Place(uint64_t id, uint32_t row) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Erase(uint64_t id) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Room for one more row within the budget. False when there is none.
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
  std::vector<uint8_t> pushed_ ABSL_GUARDED_BY(mutex_);  // by row: since the hand was there
  size_t hand_ ABSL_GUARDED_BY(mutex_) = 0;
  uint64_t dropped_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<float> sums_ ABSL_GUARDED_BY(mutex_);     // [block x dim]
  std::vector<float> decoded_ ABSL_GUARDED_BY(mutex_);  // the same
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_CLIENT_ERROR_FEEDBACK_H_

// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WEIGHTS_SERVER_UPLOADS_H_
#define TANDEM_WEIGHTS_SERVER_UPLOADS_H_

#include <cstdint>
#include <map>
#include <memory>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/bytes.h"
#include "base/clock.h"
#include "weights/model/model.h"

namespace tandem::weights {

// Versions whose values arrive in pieces. An upload ends when it is taken. It is dropped when a newer version
// of its model begins, when it has been idle for kIdle, or when it is the oldest of too many; its publisher
// then sends the version as a whole. Thread-safe. A call blocks only while another one copies a piece of the
// same upload.
class Uploads {
 public:
  static constexpr size_t kMost = 16;
  static constexpr absl::Duration kIdle = absl::Minutes(1);

  struct State {
    uint64_t count = 0, bytes = 0;  // of the uploads under way
    uint64_t dropped = 0;           // uploads that ended without being taken
  };

  // All uploads together hold at most `max_bytes`; 0: only their number is limited.
  Uploads(uint64_t max_bytes, Clock* clock) : max_bytes_(max_bytes), clock_(clock) {}

  // Begins upload `id`, which is not 0. No effect if there is such an upload already. InvalidArgument: the
  // tensors are none of a model. FailedPrecondition: a newer version of the model is on its way.
  // ResourceExhausted: it has more than kMaxBytesInPieces or `max_bytes` bytes, or there is no memory.
  absl::Status Begin(uint64_t id, ModelInfo info);
  // Copies values, which begin at byte `offset`. NotFound: there is no such upload. InvalidArgument: the
  // values lie outside the model, or are not whole pieces of its digest.
  absl::Status Put(uint64_t id, uint64_t offset, const Bytes& values);
  // Ends the upload and returns the model, with the info of Begin. Its digest has been computed, and not been
  // checked. NotFound: there is no such upload. FailedPrecondition: pieces are missing.
  absl::StatusOr<std::shared_ptr<Model>> Take(uint64_t id);
  // Drops the uploads that have been idle for kIdle. Begin calls it; the owner must call it as well, since
  // there may be no further upload. Returns when the next one will have been idle, at most kIdle from now, or
  // InfiniteFuture if there is none.
  absl::Time DropIdle();
  State state() const;

 private:
  struct Upload;
  using Map = std::map<uint64_t, std::shared_ptr<Upload>>;

  std::shared_ptr<Upload> Find(uint64_t id);
  // Removes uploads of older versions of the model, and the oldest ones until one of `bytes` bytes may be
  // added. Returns what was removed, to be destroyed without the lock.
  Map MakeSpace(const ModelInfo& info, uint64_t bytes) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const uint64_t max_bytes_;
  Clock* const clock_;
  mutable absl::Mutex mutex_;
  Map uploads_ ABSL_GUARDED_BY(mutex_);
  uint64_t dropped_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace tandem::weights

#endif  // TANDEM_WEIGHTS_SERVER_UPLOADS_H_

// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_WORKER_REPORT_TENSORBOARD_WRITER_H_
#define TANDEM_WORKER_REPORT_TENSORBOARD_WRITER_H_

// Writes scalars for TensorBoard. `tensorboard --logdir DIR` shows each directory below DIR that contains
// event files as a run.

#include <cstdint>
#include <fstream>
#include <memory>
#include <string>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "absl/synchronization/mutex.h"
#include "absl/types/span.h"
#include "base/clock.h"

namespace tandem::worker {

// Writes one event file, which no other writer uses. Thread-safe.
class TensorboardWriter {
 public:
  using Scalar = std::pair<absl::string_view, double>;  // "train/loss", its value

  // Creates `directory` and a new file in it; a resumed run thus continues next to its older files. Returns
  // Unavailable, naming the path, if it cannot be written.
  static absl::StatusOr<std::unique_ptr<TensorboardWriter>> Open(const std::string& directory,
                                                                 Clock* clock = Clock::Real());

  // Writes `scalars` as of `step` and flushes them to the kernel, so that readers of the file see them. May
  // block on the disk. Returns Unavailable, naming the path, if that fails; earlier records in the file stay
  // readable.
  absl::Status Write(int64_t step, absl::Span<const Scalar> scalars);

  const std::string& path() const { return path_; }

 private:
  TensorboardWriter(std::string path, Clock* clock);
  absl::Status Append(const std::string& event) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const std::string path_;
  Clock* const clock_;
  absl::Mutex mutex_;
  std::ofstream out_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::worker

#endif  // TANDEM_WORKER_REPORT_TENSORBOARD_WRITER_H_

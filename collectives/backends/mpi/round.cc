// SPDX-License-Identifier: Apache-2.0
#include "collectives/backends/mpi/round.h"

#include <mpi.h>

#include <utility>

namespace tandem::collectives::mpi {
namespace {

class MpiRound final : public Round, public Activity {
 public:
  MpiRound(std::shared_ptr<Monitor> monitor, absl::string_view call, std::shared_ptr<void> memory,
           Begin begin)
      : monitor_(std::move(monitor)), call_(call), memory_(std::move(memory)), begin_(std::move(begin)) {}

  bool Poll() override {
    int over = 0, error = MPI_SUCCESS;
    if (!begun_) {
      begun_ = true;
      // No thread waits for a new round of a broken group; a round that MPI has begun must run to its end.
      if (monitor_->broken()) {
        over = 1;
      } else {
        error = begin_(&request_);
      }
    }
    if (over == 0 && error == MPI_SUCCESS) error = MPI_Test(&request_, &over, MPI_STATUS_IGNORE);
    if (over == 0 && error == MPI_SUCCESS) return false;
    status_ = FromMpi(error, call_);
    monitor_->Ring(&done_);
    return true;
  }
  bool background() const override { return monitor_->broken(); }

  absl::Status Wait(absl::Time deadline) override {
    if (!done_.load(std::memory_order_acquire)) monitor_->Wait(done_, deadline);
    if (monitor_->broken()) return monitor_->error();
    if (!done_.load(std::memory_order_acquire)) return absl::DeadlineExceededError("");
    return status_;
  }

 private:
  const std::shared_ptr<Monitor> monitor_;
  const std::string call_;
  const std::shared_ptr<void> memory_;
  const Begin begin_;
  bool begun_ = false;
  MPI_Request request_ = MPI_REQUEST_NULL;
  absl::Status status_;  // before done_
  std::atomic<bool> done_{false};
};

}  // namespace

std::shared_ptr<Round> StartRound(Engine* engine, std::shared_ptr<Monitor> monitor, absl::string_view call,
                                  std::shared_ptr<void> memory, Begin begin) {
  auto round = std::make_shared<MpiRound>(std::move(monitor), call, std::move(memory), std::move(begin));
  engine->Add(round);
  return round;
}

}  // namespace tandem::collectives::mpi

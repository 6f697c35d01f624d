// SPDX-License-Identifier: Apache-2.0
#include "bench/suites/call_loop.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include "base/status.h"
#include "bench/harness/cpu_seconds.h"

namespace tandem::bench {

CallLoop::CallLoop(const PsCase& bench_case, ps::Client* client,
                   const std::vector<std::vector<uint64_t>>& batches, size_t first, RowModel* model,
                   bool check_responses)
    : case_(bench_case),
      client_(client),
      batches_(batches),
      model_(model),
      check_responses_(check_responses),
      slots_(static_cast<size_t>(bench_case.in_flight)),
      next_batch_(first % batches.size()),
      pushes_(batches.size(), 0) {
  const size_t floats = case_.ids * case_.dim;
  for (Slot& slot : slots_) slot.rows.assign(floats, 0.0f);
  if (case_.op != PsOp::kPull) {
    gradients_ = std::make_shared<const std::vector<float>>(floats, RowModel::kGradient);
  }
}

CallLoop::~CallLoop() {
  while (outstanding_ > 0) WaitForOne();
}

void CallLoop::Start(Slot* slot, bool pull) {
  slot->batch = next_batch_;
  slot->pull = pull;
  next_batch_ = (next_batch_ + 1) % batches_.size();
  ++calls_;
  ++outstanding_;
  if (!pull) ++pushes_[slot->batch];
  const std::vector<uint64_t>& ids = batches_[slot->batch];
  std::vector<ps::PullPart> pulled;
  std::vector<ps::PushPart> pushed;
  if (pull) {
    pulled.push_back({.table = kPsTable, .ids = ids, .rows = slot->rows.data()});
  } else {
    pushed.push_back({.table = kPsTable,
                      .ids = ids,
                      .gradients = gradients_->data(),
                      .repeats = false,
                      .owner = gradients_});
  }
  const auto done = [this, slot](absl::Status status) {
    slot->end = Clock::now();
    slot->status = std::move(status);
    absl::MutexLock lock(&mutex_);
    done_.push_back(slot);
  };
  slot->begin = Clock::now();
  // A single call in flight uses the blocking calls.
  if (pull && case_.in_flight == 1) {
    done(client_->Pull(calls_, case_.reads, std::move(pulled)).status());
  } else if (pull) {
    client_->PullAsync(calls_, case_.reads, std::move(pulled),
                       [done](absl::StatusOr<ps::PullVersions> versions) { done(versions.status()); });
  } else if (case_.in_flight == 1) {
    done(client_->Push(calls_, std::move(pushed)));
  } else {
    client_->PushAsync(calls_, std::move(pushed), /*options=*/{}, done);
  }
}

CallLoop::Slot* CallLoop::WaitForOne() {
  absl::MutexLock lock(&mutex_, absl::Condition(this, &CallLoop::HasDone));
  Slot* const slot = done_.front();
  done_.pop_front();
  --outstanding_;
  return slot;
}

absl::Status CallLoop::CheckOneRow(const Slot& slot) {
  const std::vector<uint64_t>& ids = batches_[slot.batch];
  const size_t row = calls_ * 7919 % ids.size();
  return model_->CheckOne(ids[row], slot.rows.data() + row * case_.dim);
}

absl::StatusOr<CallTimes> CallLoop::Run(absl::Duration duration) {
  CallTimes times;
  TANDEM_ASSIGN_OR_RETURN(const double cpu_before, CpuSecondsOf(::getpid()));
  const Clock::time_point begin = Clock::now();
  const Clock::time_point end = begin + absl::ToChronoNanoseconds(duration);
  const auto start = [this](Slot* slot) {
    Start(slot, case_.op == PsOp::kMixed ? calls_ % 2 == 0 : case_.op == PsOp::kPull);
  };
  for (Slot& slot : slots_) start(&slot);
  while (outstanding_ > 0) {
    Slot* const slot = WaitForOne();
    TANDEM_RETURN_IF_ERROR(slot->status);
    if (check_responses_) TANDEM_RETURN_IF_ERROR(CheckOneRow(*slot));
    times.keys += case_.ids;
    times.latencies_us.push_back(std::chrono::duration<double, std::micro>(slot->end - slot->begin).count());
    if (slot->end < end) {
      start(slot);
    } else if (outstanding_ == 0) {
      times.seconds = std::chrono::duration<double>(slot->end - begin).count();
    }
  }
  TANDEM_ASSIGN_OR_RETURN(const double cpu_after, CpuSecondsOf(::getpid()));
  times.cpu_seconds = cpu_after - cpu_before;
  return times;
}

absl::Status CallLoop::Verify(size_t calls) {
  size_t started = 0;
  for (; started < std::min(calls, slots_.size()); ++started) Start(&slots_[started], /*pull=*/true);
  while (outstanding_ > 0) {
    Slot* const slot = WaitForOne();
    TANDEM_RETURN_IF_ERROR(slot->status);
    TANDEM_RETURN_IF_ERROR(model_->Check(batches_[slot->batch], slot->rows.data()));
    if (started++ < calls) Start(slot, /*pull=*/true);
  }
  return absl::OkStatus();
}

std::vector<uint32_t> CallLoop::TakePushes() {
  return std::exchange(pushes_, std::vector<uint32_t>(batches_.size(), 0));
}

}  // namespace tandem::bench

// SPDX-License-Identifier: Apache-2.0
#include "collectives/group/lane.h"

#include <algorithm>
#include <iterator>
#include <utility>

#include "absl/base/optimization.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/timed_wait.h"
#include "base/trace/trace.h"

namespace tandem::collectives {
namespace {

constexpr uint64_t kBusy = 1, kQueued = 2, kFlags = 3;
constexpr uint64_t kOneNumber = 4;

// A point-to-point message that does not fit its recv is dropped; everything else breaks the group.
bool BreaksGroup(const absl::Status& status) { return !status.ok() && !absl::IsInvalidArgument(status); }

// Kinds of trace events, by OpKind.
constexpr trace::Kind kTraced[] = {
    {"?", "collective"},
    {"all_reduce", "collective", {"bytes", "sequence"}},
    {"reduce", "collective", {"bytes", "sequence"}},
    {"broadcast", "collective", {"bytes", "sequence"}},
    {"all_gather", "collective", {"bytes", "sequence"}},
    {"gather", "collective", {"bytes", "sequence"}},
    {"scatter", "collective", {"bytes", "sequence"}},
    {"reduce_scatter", "collective", {"bytes", "sequence"}},
    {"all_to_all", "collective", {"bytes", "sequence"}},
    {"barrier", "collective", {"bytes", "sequence"}},
    {"send", "collective", {"bytes", "sequence", "peer"}, /*may_overlap=*/true},
    {"recv", "collective", {"bytes", "sequence", "peer"}, /*may_overlap=*/true},
    {"leave", "collective"},
};
static_assert(static_cast<size_t>(OpKind::kLeave) + 1 == std::size(kTraced));

// Traces the time of an operation in its backend.
class OperationTrace {
 public:
  explicit OperationTrace(const Operation& o) : begin_(trace::Begin()) {
    if (ABSL_PREDICT_TRUE(begin_ == 0)) return;
    kind_ = &kTraced[static_cast<size_t>(o.kind)];
    bytes_ = static_cast<int64_t>(std::max(o.in.count, o.out.count) * SizeOf(o.dtype));
    sequence_ = static_cast<int64_t>(o.sequence);
    root_ = o.root;
  }
  void End() const { trace::End(*kind_, begin_, bytes_, sequence_, root_); }

 private:
  uint64_t begin_;
  const trace::Kind* kind_ = &kTraced[0];
  int64_t bytes_ = 0, sequence_ = 0, root_ = 0;
};

}  // namespace

Lane::Lane(Options options) : options_(std::move(options)), backend_(std::move(options_.backend)) {}

Lane::~Lane() { TANDEM_CHECK(!thread_.joinable()); }

bool Lane::TakeTurn(uint64_t count, uint64_t* sequence) {
  if (options_.health->broken()) return false;
  uint64_t word = word_.load(std::memory_order_relaxed);
  if ((word & kFlags) == 0 &&
      word_.compare_exchange_strong(word, (word + count * kOneNumber) | kBusy, std::memory_order_acquire,
                                    std::memory_order_relaxed)) {
    *sequence = word / kOneNumber;
    return true;
  }
  return TakeTurnBehindOthers(count, sequence, /*last=*/false);
}

bool Lane::TakeTurnBehindOthers(uint64_t count, uint64_t* sequence, bool last) {
  absl::MutexLock lock(&mutex_);
  if (!last && options_.health->broken()) return false;
  if (TakeNumbers(count, sequence)) return true;
  Waiter waiter;
  waiter.last = last;
  queue_.push_back({&waiter, nullptr});
  // No deadline here: each operation before it ends by its own time-out.
  while (!waiter.granted && !waiter.failed) waiter.turn.Wait(&mutex_);
  return waiter.granted;
}

bool Lane::TakeNumbers(uint64_t count, uint64_t* sequence) {
  uint64_t word = word_.load(std::memory_order_relaxed), desired;
  do {
    desired = (word + count * kOneNumber) | kBusy | ((word & kBusy) != 0 ? kQueued : 0);
  } while (!word_.compare_exchange_weak(word, desired, std::memory_order_acq_rel, std::memory_order_relaxed));
  *sequence = word / kOneNumber;
  return (word & kBusy) == 0;
}

void Lane::Release() {
  uint64_t word = word_.load(std::memory_order_relaxed);
  while ((word & kQueued) == 0) {
    if (word_.compare_exchange_weak(word, word & ~kBusy, std::memory_order_release,
                                    std::memory_order_relaxed)) {
      return;
    }
  }
  absl::MutexLock lock(&mutex_);
  if (queue_.empty()) {  // FailQueued came first
    word_.fetch_and(~kBusy, std::memory_order_release);
  } else {
    GrantNext();
  }
}

void Lane::GrantNext() {
  Queued next = std::move(queue_.front());
  queue_.pop_front();
  if (queue_.empty()) word_.fetch_and(~kQueued, std::memory_order_release);
  if (next.waiter != nullptr) {
    next.waiter->granted = true;
    next.waiter->turn.Signal();
  } else {
    to_thread_ = std::move(next.task);
  }
}

uint64_t Lane::Record(const Operation& operation) {
  return options_.recorder == nullptr ? 0 : options_.recorder->BeginStarted(options_.record_group, operation);
}

void Lane::EndRecord(uint64_t record, const absl::Status& status) {
  if (options_.recorder != nullptr) options_.recorder->End(record, status);
}

Work Lane::Run(Operation* operation) {
  if (options_.device != Device::Kind::kCpu) {
    return RunOnDevice(absl::MakeSpan(operation, 1), /*wait=*/true, nullptr);
  }
  if (!TakeTurn(1, &operation->sequence)) return Work(options_.health->error());
  const uint64_t record = Record(*operation);
  const OperationTrace traced(*operation);
  absl::Status status = backend_->Run(*operation);
  traced.End();
  EndRecord(record, status);
  if (ABSL_PREDICT_FALSE(!status.ok()) && Break(status)) options_.on_broken();
  Release();
  return Work(std::move(status));
}

Work Lane::Run(Task* task) {
  if (options_.device != Device::Kind::kCpu) {
    std::vector<Operation> operations;
    for (const Call& call : task->calls) operations.push_back(call.operation);
    return RunOnDevice(absl::MakeSpan(operations), /*wait=*/true, nullptr);
  }
  uint64_t sequence;
  if (!TakeTurn(task->calls.size(), &sequence)) return Work(options_.health->error());
  for (Call& call : task->calls) {
    call.operation.sequence = sequence++;
    task->records.push_back(Record(call.operation));
  }
  absl::Status status = RunInTurn(task);
  if (!status.ok() && Break(status)) options_.on_broken();
  Release();
  return Work(std::move(status));
}

absl::Status Lane::RunInTurn(Task* task) {
  Task::Run(task->before);
  absl::Status status;
  for (size_t i = 0; i < task->calls.size(); ++i) {
    if (status.ok()) {
      if (options_.recorder != nullptr) options_.recorder->Start(task->records[i]);
      const OperationTrace traced(task->calls[i].operation);
      status = backend_->Run(task->calls[i].operation);
      traced.End();
    }
    EndRecord(task->records[i], status);
  }
  if (status.ok()) Task::Run(task->after);
  return status;
}

Work Lane::Enqueue(std::unique_ptr<Task> task) {
  if (options_.device != Device::Kind::kCpu) {
    std::vector<Operation> operations;
    for (const Call& call : task->calls) operations.push_back(call.operation);
    return RunOnDevice(absl::MakeSpan(operations), /*wait=*/false, nullptr);
  }
  auto work = std::make_shared<internal::WorkState>();
  task->work = work;
  absl::MutexLock lock(&mutex_);
  if (options_.health->broken()) return Work(options_.health->error());
  StartThread();
  uint64_t sequence;
  const bool now = TakeNumbers(task->calls.size(), &sequence);
  for (Call& call : task->calls) {
    call.operation.sequence = sequence++;
    if (options_.recorder == nullptr) {
      task->records.push_back(0);
    } else {
      task->records.push_back(options_.recorder->Begin(options_.record_group, call.operation));
    }
  }
  if (now) {
    to_thread_ = std::move(task);
  } else {
    queue_.push_back({nullptr, std::move(task)});
  }
  return Work(std::move(work));
}

void Lane::RunTask(std::unique_ptr<Task> task) {
  absl::Status status = options_.health->error();
  if (status.ok()) {
    status = RunInTurn(task.get());
  } else {
    for (uint64_t record : task->records) EndRecord(record, status);
  }
  if (status.ok()) {
    // The turn is released first, so that a woken thread finds it free.
    Release();
    task->work->Complete(std::move(status));
    return;
  }
  const bool first = Break(status);
  task->work->Complete(std::move(status));
  if (first) options_.on_broken();
  Release();
}

void Lane::FailQueued() {
  std::vector<std::unique_ptr<Task>> failed;
  {
    absl::MutexLock lock(&mutex_);
    std::deque<Queued> kept;
    for (Queued& queued : queue_) {
      if (queued.task != nullptr) {
        failed.push_back(std::move(queued.task));
      } else if (queued.waiter->last) {
        kept.push_back(std::move(queued));
      } else {
        queued.waiter->failed = true;
        queued.waiter->turn.Signal();
      }
    }
    queue_ = std::move(kept);
    if (queue_.empty()) word_.fetch_and(~kQueued, std::memory_order_release);
  }
  const absl::Status error = options_.health->error();
  for (const std::unique_ptr<Task>& task : failed) {
    for (uint64_t record : task->records) EndRecord(record, error);
    task->work->Complete(error);
  }
}

void Lane::AbortBackend(const absl::Status& reason) {
  {
    absl::MutexLock lock(&mutex_);
    if (closed_) return;
    ++aborting_;
  }
  backend_->Abort(reason);
  absl::MutexLock lock(&mutex_);
  --aborting_;
}

void Lane::WaitForQueued() {
  uint64_t sequence;
  TANDEM_CHECK(TakeTurnBehindOthers(0, &sequence, /*last=*/true));
}

void Lane::Close(absl::Duration drain_timeout) {
  if (concurrent_.fetch_or(1) != 0) {
    // Aborting operations on a device would also abort the other groups that use it.
    if (options_.device != Device::Kind::kCpu) drain_timeout = absl::InfiniteDuration();
    bool ended;
    {
      absl::MutexLock lock(&mutex_);
      ended = AwaitFor(&mutex_, absl::Condition(&concurrent_ended_), drain_timeout);
    }
    if (!ended) {
      AbortBackend(options_.health->error());
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(&concurrent_ended_));  // a backend ends all operations soon after Abort
    }
  }
  {
    absl::MutexLock lock(&mutex_);
    stopped_ = true;
  }
  if (thread_.joinable()) thread_.join();
  {
    absl::MutexLock lock(&mutex_);
    closed_ = true;
    auto nobody_aborts = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return aborting_ == 0; };
    mutex_.Await(absl::Condition(&nobody_aborts));
  }
  backend_.reset();
  if (options_.recorder != nullptr) options_.recorder->RemoveGroup(options_.record_group);
}

bool Lane::BeginConcurrent() {
  concurrent_.fetch_add(2);
  if (!options_.health->broken()) return true;
  EndConcurrent();
  return false;
}

void Lane::EndConcurrent() {
  // No member may be touched afterwards, unless Close is known to wait.
  if (concurrent_.fetch_sub(2) != 3) return;
  absl::MutexLock lock(&mutex_);
  concurrent_ended_ = true;
}

Work Lane::RunPointToPoint(Operation* operation) {
  if (options_.device != Device::Kind::kCpu) {
    return RunOnDevice(absl::MakeSpan(operation, 1), /*wait=*/true, nullptr);
  }
  if (!BeginConcurrent()) return Work(options_.health->error());
  operation->sequence = next_point_to_point_.fetch_add(1, std::memory_order_relaxed);
  const uint64_t record = Record(*operation);
  const OperationTrace traced(*operation);
  const absl::StatusOr<int> source = backend_->RunPointToPoint(*operation);
  traced.End();
  EndRecord(record, source.status());
  if (BreaksGroup(source.status()) && Break(source.status())) options_.on_broken();
  EndConcurrent();
  return Work(source.status(), source.ok() ? *source : -1);
}

Work Lane::StartPointToPoint(Operation* operation) {
  if (options_.device != Device::Kind::kCpu) {
    return RunOnDevice(absl::MakeSpan(operation, 1), /*wait=*/false, nullptr);
  }
  if (!BeginConcurrent()) return Work(options_.health->error());
  operation->sequence = next_point_to_point_.fetch_add(1, std::memory_order_relaxed);
  auto state = std::make_shared<internal::WorkState>();
  const uint64_t record = Record(*operation);
  const OperationTrace traced(*operation);
  backend_->StartPointToPoint(*operation, [this, state, record, traced](absl::StatusOr<int> source) {
    traced.End();
    EndRecord(record, source.status());
    const bool first = BreaksGroup(source.status()) && Break(source.status());
    state->Complete(source.status(), source.ok() ? *source : -1);
    if (first) options_.on_broken();
    EndConcurrent();
  });
  return Work(std::move(state));
}

absl::StatusOr<BackendFactory> Lane::Split(int color, int key, const BackendOptions& options) {
  uint64_t sequence;
  if (!TakeTurn(0, &sequence)) return options_.health->error();
  absl::StatusOr<BackendFactory> split = backend_->Split(color, key, options);
  if (!split.ok() && Break(split.status())) options_.on_broken();
  Release();
  return split;
}

absl::Status Lane::RegisterBuffer(TensorView buffer) {
  uint64_t sequence;
  if (!TakeTurn(0, &sequence)) return options_.health->error();
  const absl::Status status = backend_->RegisterBuffer(buffer);
  Release();
  return status;
}

absl::Status Lane::DeregisterBuffer(TensorView buffer) {
  uint64_t sequence;
  if (!TakeTurn(0, &sequence)) return options_.health->error();
  const absl::Status status = backend_->DeregisterBuffer(buffer);
  Release();
  return status;
}

std::vector<Work> Lane::EnqueueBatch(absl::Span<Operation> operations) {
  std::vector<Work> works;
  (void)RunOnDevice(operations, /*wait=*/false, &works);
  return works;
}

Work Lane::RunOnDevice(absl::Span<Operation> operations, bool wait, std::vector<Work>* each) {
  auto finished = [&](const absl::Status& status) {
    if (each != nullptr) each->assign(operations.size(), Work(status));
    return Work(status);
  };
  uint64_t collectives = 0, sequence;
  absl::Duration timeout = absl::ZeroDuration();
  for (const Operation& operation : operations) {
    collectives += operation.kind != OpKind::kSend && operation.kind != OpKind::kRecv;
    timeout = std::max(timeout, operation.timeout);
  }
  if (!TakeTurn(collectives, &sequence)) return finished(options_.health->error());
  if (!BeginConcurrent()) {
    Release();
    return finished(options_.health->error());
  }
  Watched watched;
  for (Operation& operation : operations) {
    const bool collective = operation.kind != OpKind::kSend && operation.kind != OpKind::kRecv;
    operation.sequence = collective ? sequence++ : next_point_to_point_.fetch_add(1);
    watched.records.push_back(Record(operation));
  }
  absl::StatusOr<std::shared_ptr<DeviceWork>> device = backend_->Enqueue(operations);
  Release();
  watched.timeout = timeout;
  if (!device.ok()) {
    watched.failure = device.status();
  } else {
    watched.device = *device;
    if (watched.device != nullptr && options_.recorder != nullptr) {
      for (uint64_t record : watched.records) options_.recorder->Requeue(record);
    }
  }
  if (wait || watched.device == nullptr) {
    const Work work = finished(FinishOnDevice(&watched));
    EndConcurrent();
    return work;
  }
  for (size_t i = 0; i < (each == nullptr ? 1 : operations.size()); ++i) {
    watched.works.push_back(std::make_shared<internal::WorkState>());
    watched.works.back()->SetDeviceWork(watched.device);
    if (each != nullptr) each->push_back(Work(watched.works.back()));
  }
  Work work(watched.works.back());
  absl::MutexLock lock(&mutex_);
  StartThread();
  watched_.push_back(std::move(watched));
  return work;
}

absl::Status Lane::FinishOnDevice(Watched* watched) {
  absl::Status status = watched->failure;
  if (watched->device != nullptr) {
    status = watched->device->AwaitStart();
    if (status.ok()) {
      if (options_.recorder != nullptr) {
        for (uint64_t record : watched->records) options_.recorder->Start(record);
      }
      status = watched->device->Wait(watched->timeout);
    }
  }
  for (uint64_t record : watched->records) EndRecord(record, status);
  const bool first = !status.ok() && Break(status);
  for (const auto& work : watched->works) work->Complete(status);
  if (!status.ok()) AbortBackend(status);  // operations queued behind it on the device would wait forever
  if (first) options_.on_broken();
  watched->device.reset();
  return status;
}

void Lane::StartThread() {
  if (thread_.joinable()) return;
  thread_ = std::thread([this] {
    trace::NameThread("collectives");
    Loop();
  });
}

void Lane::Loop() {
  absl::MutexLock lock(&mutex_);
  auto ready = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    return to_thread_ != nullptr || !watched_.empty() || stopped_;
  };
  for (;;) {
    mutex_.Await(absl::Condition(&ready));
    if (to_thread_ != nullptr) {
      std::unique_ptr<Task> task = std::move(to_thread_);
      mutex_.Unlock();
      RunTask(std::move(task));
      mutex_.Lock();
    } else if (!watched_.empty()) {
      Watched watched = std::move(watched_.front());
      watched_.pop_front();
      mutex_.Unlock();
      (void)FinishOnDevice(&watched);
      EndConcurrent();
      mutex_.Lock();
    } else {
      return;
    }
  }
}

}  // namespace tandem::collectives

// SPDX-License-Identifier: Apache-2.0
#include "collectives/backends/nccl/link.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/logging.h"
#include "base/status.h"
#include "base/timed_wait.h"

namespace tandem::collectives::nccl {
namespace {

constexpr char kErrorKey[] = "gave_up";  // "<rank>/<code>/<message>" of the first rank to break
// The time for which a store that did not respond is left alone.
constexpr absl::Duration kSilentStore = absl::Seconds(10);
// How long Close waits for an abort. Aborts can hang (NVIDIA/nccl#1777).
constexpr absl::Duration kAbortTimeout = absl::Seconds(5);
// The least time that Close gives ncclCommDestroy.
constexpr absl::Duration kDestroyTimeout = absl::Seconds(1);

}  // namespace

Link::Link(std::shared_ptr<Runtime> runtime, int device, const BackendOptions& options)
    : runtime_(std::move(runtime)),
      group_(options.group),
      rank_(options.rank),
      world_size_(options.world_size),
      device_(device),
      store_(options.store) {}

Link::~Link() {
  Event last;
  {
    absl::MutexLock lock(&mutex_);
    last = std::move(last_);
  }
  last.reset();
  absl::MutexLock lock(&mutex_);
  for (void* event : free_events_) runtime_->cuda()->EventDestroy(event);
}

absl::StatusOr<std::shared_ptr<Link>> Link::Connect(std::shared_ptr<Runtime> runtime, int device,
                                                    const BackendOptions& options, absl::string_view call,
                                                    const Begin& begin) {
  auto link = std::make_shared<Link>(runtime, device, options);
  runtime->Add(link);  // from now on it is aborted together with the others
  auto what = [&] { return std::string(call); };
  absl::Status status = link->Allocate();
  if (status.ok()) {
    {
      cuda::DeviceScope on_device(runtime->cuda(), device);
      ExecutionSlot slot(runtime.get(), options.deadline);
      if (!slot.taken()) {
        status =
            absl::DeadlineExceededError(absl::StrCat(call, ": NCCL hangs in another call of this process"));
      } else if (link->broken()) {
        status = link->error();
      } else {
        Comm* const made = link->AllocateComm();
        const Result result = begin(made);
        link->SetCommunicator(*made);
        if (result != Result::kSuccess && result != Result::kInProgress)
          status = link->FromNccl(call, result);
      }
    }
    if (status.ok()) status = link->AwaitReady(what, options.deadline);
  }
  if (status.ok()) return link;
  // No kernel of this communicator is queued.
  if (!link->broken()) runtime->AbortOne(link.get(), status);
  const absl::Status error = link->error();
  link->Close(absl::ZeroDuration());
  return error;
}

absl::Status Link::Allocate() {
  cuda::DeviceScope on_device(runtime_->cuda(), device_);
  void* scratch = nullptr;
  TANDEM_RETURN_IF_ERROR(FromCuda("cudaStreamCreate", runtime_->cuda()->StreamCreateNonBlocking(&stream_)));
  TANDEM_RETURN_IF_ERROR(FromCuda("cudaMalloc", runtime_->cuda()->Malloc(&scratch, sizeof(int))));
  scratch_ = static_cast<int*>(scratch);
  return absl::OkStatus();
}

Comm* Link::AllocateComm() {
  absl::MutexLock lock(&mutex_);
  allocated_comms_.push_back(std::make_unique<Comm>(nullptr));
  return allocated_comms_.back().get();
}

void Link::SetCommunicator(Comm comm) {
  bool late = false;
  {
    absl::MutexLock lock(&mutex_);
    comm_ = comm;
    // The watching thread aborted the group without waiting for the slot, when there was no communicator.
    late = aborted_ && comm != nullptr;
    if (late) aborted_ = false;
  }
  if (late) runtime_->Wake();
}

Comm Link::comm() {
  absl::MutexLock lock(&mutex_);
  return comm_;
}

absl::Status Link::error() {
  absl::MutexLock lock(&mutex_);
  return error_;
}

void Link::MarkBroken(const absl::Status& reason) {
  absl::MutexLock lock(&mutex_);
  if (!error_.ok()) return;
  error_ = reason;
  broken_.store(true, std::memory_order_release);
}

absl::Status Link::Fail(const absl::Status& status) {
  if (!broken()) Break(status);
  return error();
}

absl::Status Link::FromNccl(absl::string_view what, Result result) {
  if (result == Result::kSuccess) return absl::OkStatus();
  const absl::string_view detail = runtime_->nccl()->GetLastError(comm());
  std::string text = absl::StrCat(what, " on rank ", rank_, " of group '", group_,
                                  "': NCCL: ", runtime_->nccl()->GetErrorString(result));
  if (!detail.empty()) absl::StrAppend(&text, " (", detail, ")");
  if (result == Result::kInvalidUsage || result == Result::kInvalidArgument) {
    absl::StrAppend(&text, "; two ranks on one GPU? Give each its own with cudaSetDevice or LOCAL_RANK");
    return absl::FailedPreconditionError(text);
  }
  return absl::UnavailableError(text);
}

absl::Status Link::FromCuda(absl::string_view what, int error) {
  if (error == cuda::kCudaSuccess) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(what, " on GPU ", device_, " of rank ", rank_, " of group '",
                                             group_, "': CUDA: ", runtime_->cuda()->GetErrorString(error)));
}

absl::Status Link::AwaitReady(absl::FunctionRef<std::string()> what, absl::Time deadline) {
  cuda::PollPause pause;
  for (;;) {
    {
      ExecutionSlot slot(runtime_.get(), deadline);
      if (broken()) return error();
      Result state = Result::kInProgress;
      const Comm asked = comm();
      if (slot.taken() && asked != nullptr) {
        const Result result = runtime_->nccl()->CommGetAsyncError(asked, &state);
        if (result != Result::kSuccess) state = result;
      }
      if (state == Result::kSuccess) return absl::OkStatus();
      if (state != Result::kInProgress) return FromNccl(what(), state);
    }
    if (MonotonicNow() >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat(what(), " on rank ", rank_, " of group '", group_,
                                                      "': the other ranks did not join in time"));
    }
    pause.Wait();
  }
}

absl::Status Link::Call(absl::FunctionRef<std::string()> what, absl::Time deadline,
                        absl::FunctionRef<Result(Comm)> body) {
  absl::Status status;
  {
    ExecutionSlot slot(runtime_.get(), deadline);
    if (broken()) return error();
    if (!slot.taken()) {
      status = absl::DeadlineExceededError(absl::StrCat(what(), " on rank ", rank_, " of group '", group_,
                                                        "': NCCL hangs in another call of this process"));
    } else {
      const Result result = body(comm());
      if (result == Result::kSuccess) return absl::OkStatus();
      if (result != Result::kInProgress) status = FromNccl(what(), result);
    }
  }
  if (status.ok()) status = AwaitReady(what, deadline);
  return status.ok() ? status : Fail(status);
}

absl::Status Link::LocalCall(absl::string_view what, absl::Time deadline,
                             absl::FunctionRef<Result(Comm)> body) {
  cuda::DeviceScope on_device(runtime_->cuda(), device_);
  ExecutionSlot slot(runtime_.get(), deadline);
  if (broken()) return error();
  if (!slot.taken()) {
    return absl::DeadlineExceededError(absl::StrCat(what, ": NCCL hangs in another call of this process"));
  }
  const Result result = body(comm());
  if (result == Result::kSuccess) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(what, ": NCCL: ", runtime_->nccl()->GetErrorString(result), " (",
                                             runtime_->nccl()->GetLastError(comm()), ")"));
}

absl::StatusOr<Comm> Link::SplitCommunicator(int color, int key, const Config& config, absl::Time deadline) {
  // "There must not be any outstanding NCCL operations on the communicator to avoid a deadlock."
  // (ncclCommSplit in NCCL's documentation)
  TANDEM_RETURN_IF_ERROR(AwaitIdle(deadline));
  auto what = [] { return std::string("ncclCommSplit"); };
  Comm* const made = AllocateComm();
  cuda::DeviceScope on_device(runtime_->cuda(), device_);
  TANDEM_RETURN_IF_ERROR(Call(what, deadline, [&](Comm comm) {
    Config copy = config;
    const Result result = runtime_->nccl()->CommSplit(comm, color < 0 ? kNoColor : color, key, made, &copy);
    // The new communicator is stored when this one is ready again.
    return result == Result::kSuccess ? Result::kInProgress : result;
  }));
  return __atomic_load_n(made, __ATOMIC_ACQUIRE);
}

absl::Status Link::AwaitIdle(absl::Time deadline) {
  Event last;
  {
    absl::MutexLock lock(&mutex_);
    last = last_;
  }
  cuda::EventQueries queries(runtime_->cuda());
  cuda::PollPause pause;
  while (last != nullptr) {
    if (broken()) return error();
    const int state = queries.Query(last.get());
    if (state == cuda::kCudaSuccess) break;
    if (state != cuda::kCudaNotReady) return Fail(FromCuda("cudaEventQuery", state));
    if (MonotonicNow() >= deadline) {
      return Fail(absl::DeadlineExceededError(
          absl::StrCat("splitting group '", group_, "': an operation of rank ", rank_, " still runs")));
    }
    pause.Wait();
  }
  return absl::OkStatus();
}

Link::Event Link::TakeEvent(int* cuda_error) {
  void* event = nullptr;
  {
    absl::MutexLock lock(&mutex_);
    if (!free_events_.empty()) {
      event = free_events_.back();
      free_events_.pop_back();
    }
  }
  if (event == nullptr) {
    *cuda_error = runtime_->cuda()->EventCreate(&event);
    if (*cuda_error != cuda::kCudaSuccess) return nullptr;
  }
  return Event(event, [this](void* used) {
    absl::MutexLock lock(&mutex_);
    free_events_.push_back(used);
  });
}

Link::Event Link::ExchangeLast(Event done) {
  absl::MutexLock lock(&mutex_);
  std::swap(last_, done);
  return done;
}

bool Link::HasToAbort() {
  absl::MutexLock lock(&mutex_);
  return !error_.ok() && !aborted_;
}

void Link::AbortCommunicator() {
  Comm comm;
  {
    absl::MutexLock lock(&mutex_);
    comm = comm_;
    comm_ = nullptr;
  }
  if (comm != nullptr) runtime_->nccl()->CommAbort(comm);
}

void Link::SetAborted() {
  absl::MutexLock lock(&mutex_);
  // SetCommunicator may have come since AbortCommunicator.
  if (comm_ == nullptr) aborted_ = true;
}

void Link::Watch() {
  if (broken()) return;
  // Does not wait: the thread that has the slot checks for errors itself.
  ExecutionSlot slot(runtime_.get(), absl::InfinitePast());
  Result state = Result::kSuccess;
  const Comm asked = comm();
  if (slot.taken() && asked != nullptr && !broken()) {
    const Result result = runtime_->nccl()->CommGetAsyncError(asked, &state);
    if (result != Result::kSuccess) state = result;
  }
  if (state != Result::kSuccess && state != Result::kInProgress) Break(FromNccl("an operation", state));
}

void Link::SetStore(cluster::Store* store) {
  absl::MutexLock lock(&store_mutex_);
  store_ = store;
}

void Link::ExchangeErrors() {
  absl::MutexLock lock(&store_mutex_);
  if (store_ == nullptr || error_shared_ || world_size_ == 1) return;
  if (MonotonicNow() < store_silent_until_) return;
  const absl::Status mine = error();
  if (mine.ok() && works.load() == 0) return;  // no rank waits for another
  // If the server is gone, calls of the store without a time-out of their own take 30 s. So this call asks
  // first, and the error is written only to a store that has just responded.
  const absl::StatusOr<std::string> text = store_->Get(kErrorKey, absl::ZeroDuration());
  if (!text.ok() && !absl::IsDeadlineExceeded(text.status())) {
    store_silent_until_ = MonotonicNow() + kSilentStore;
    return;
  }
  if (!mine.ok()) {
    error_shared_ = true;
    if (text.ok()) return;
    (void)store_->CompareSet(kErrorKey, "",
                             absl::StrCat(rank_, "/", static_cast<int>(mine.code()), "/", mine.message()));
    return;
  }
  if (!text.ok()) return;
  const std::vector<std::string> parts = absl::StrSplit(*text, absl::MaxSplits('/', 2));
  int code = 0;
  if (parts.size() != 3 || !absl::SimpleAtoi(parts[1], &code)) return;
  error_shared_ = true;
  Break(absl::Status(static_cast<absl::StatusCode>(code),
                     absl::StrCat("rank ", parts[0], " of group '", group_, "' gave up: ", parts[2])));
}

absl::Status Link::Finalize(absl::Time deadline) {
  auto what = [] { return std::string("leaving"); };
  {
    cuda::DeviceScope on_device(runtime_->cuda(), device_);
    ExecutionSlot slot(runtime_.get(), deadline);
    if (broken()) return error();
    if (!slot.taken()) {
      return absl::DeadlineExceededError(
          absl::StrCat(what(), " group '", group_, "': NCCL hangs in another call of this process"));
    }
    const Result result = runtime_->nccl()->CommFinalize(comm());
    if (result != Result::kSuccess && result != Result::kInProgress) return FromNccl(what(), result);
  }
  // The call returns at once; its state tells when it is done.
  return AwaitReady(what, deadline);
}

void Link::Close(absl::Duration timeout) {
  const absl::Time deadline = MonotonicNow() + timeout;
  Comm finalized = nullptr;
  if (!broken()) {
    const absl::Status left = Finalize(deadline);
    if (left.ok()) {
      absl::MutexLock lock(&mutex_);
      finalized = comm_;
      comm_ = nullptr;
      // Without a communicator here, an abort of another group has just taken it.
      if (finalized != nullptr) aborted_ = true;
    } else if (!broken()) {
      runtime_->AbortOne(this, left);
    }
  }
  bool over;
  {
    absl::MutexLock lock(&mutex_);
    over = AwaitFor(&mutex_, absl::Condition(&aborted_), kAbortTimeout);
  }
  if (over) ExchangeErrors();  // before the store goes
  SetStore(nullptr);
  // If an abort hangs, it occupies the runtime's thread, which keeps the resources that it may use.
  if (!over) return;
  runtime_->Remove(this);
  auto released = std::make_shared<TimedNotification>();
  std::thread release([self = shared_from_this(), finalized, released] {
    if (finalized != nullptr) self->runtime_->nccl()->CommDestroy(finalized);
    self->Free();
    released->Notify();
  });
  if (released->WaitUntil(std::max(deadline, MonotonicNow() + kDestroyTimeout))) {
    release.join();
  } else {
    LogWarning(absl::StrCat("group '", group_, "': ncclCommDestroy does not return; it is left behind"));
    release.detach();
  }
}

void Link::Free() {
  cuda::DeviceScope on_device(runtime_->cuda(), device_);
  if (scratch_ != nullptr) runtime_->cuda()->Free(scratch_);
  if (stream_ != nullptr) runtime_->cuda()->StreamDestroy(stream_);
  scratch_ = nullptr;
  stream_ = nullptr;
}

}  // namespace tandem::collectives::nccl

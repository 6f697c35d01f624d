// SPDX-License-Identifier: Apache-2.0
#include "collectives/backends/nccl/link.h"

#include <algorithm>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/timed_wait.h"

namespace tandem::collectives::nccl {
namespace {

constexpr absl::Duration kShortestPause = absl::Microseconds(20);
constexpr absl::Duration kLongestPause = absl::Milliseconds(2);
constexpr char kErrorKey[] = "gave_up";  // "<rank>/<code>/<message>" of the first rank to break

}  // namespace

DeviceScope::DeviceScope(CudaApi* cuda, int device) : cuda_(cuda), device_(device) {
  if (cuda_->GetDevice(&before_) != kCudaSuccess) before_ = -1;
  if (before_ != device_) cuda_->SetDevice(device_);
}

DeviceScope::~DeviceScope() {
  if (before_ >= 0 && before_ != device_) cuda_->SetDevice(before_);
}

Link::Link(std::shared_ptr<Runtime> runtime, int device, const BackendOptions& options)
    : runtime_(std::move(runtime)),
      group_(options.group),
      rank_(options.rank),
      world_size_(options.world_size),
      device_(device),
      store_(options.store) {}

absl::StatusOr<std::shared_ptr<Link>> Link::Connect(std::shared_ptr<Runtime> runtime, int device,
                                                    const BackendOptions& options, absl::string_view call,
                                                    const Begin& begin) {
  auto link = std::make_shared<Link>(runtime, device, options);
  runtime->Add(link);  // from now on it is aborted together with the others
  absl::Status status = link->Allocate();
  if (status.ok()) {
    {
      DeviceScope on_device(runtime->cuda(), device);
      ExecutionSlot slot(runtime.get(), options.deadline);
      if (!slot.taken()) {
        status =
            absl::DeadlineExceededError(absl::StrCat(call, ": NCCL hangs in another call of this process"));
      } else {
        Comm comm = nullptr;
        const Result result = begin(&comm);
        {
          absl::MutexLock lock(&link->mutex_);
          link->comm_ = comm;
        }
        if (result != Result::kSuccess && result != Result::kInProgress)
          status = link->FromNccl(call, result);
      }
    }
    if (status.ok()) status = link->AwaitReady(call, options.deadline);
  }
  if (status.ok()) return link;
  if (!link->broken()) link->Break(status);
  const absl::Status error = link->error();
  link->Close(absl::Seconds(2));
  return error;
}

absl::Status Link::Allocate() {
  DeviceScope on_device(runtime_->cuda(), device_);
  void* scratch = nullptr;
  TANDEM_RETURN_IF_ERROR(FromCuda("cudaStreamCreate", runtime_->cuda()->StreamCreateNonBlocking(&stream_)));
  TANDEM_RETURN_IF_ERROR(FromCuda("cudaMalloc", runtime_->cuda()->Malloc(&scratch, sizeof(int))));
  scratch_ = static_cast<int*>(scratch);
  return absl::OkStatus();
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
  if (error == kCudaSuccess) return absl::OkStatus();
  return absl::UnavailableError(absl::StrCat(what, " on GPU ", device_, " of rank ", rank_, " of group '",
                                             group_, "': CUDA: ", runtime_->cuda()->GetErrorString(error)));
}

absl::Status Link::AwaitReady(absl::string_view what, absl::Time deadline) {
  absl::Duration pause = kShortestPause;
  for (;;) {
    {
      ExecutionSlot slot(runtime_.get(), deadline);
      if (broken()) return error();
      Result state = Result::kInProgress;
      if (slot.taken()) {
        const Result result = runtime_->nccl()->CommGetAsyncError(comm(), &state);
        if (result != Result::kSuccess) state = result;
      }
      if (state == Result::kSuccess) return absl::OkStatus();
      if (state != Result::kInProgress) return FromNccl(what, state);
    }
    if (MonotonicNow() >= deadline) {
      return absl::DeadlineExceededError(absl::StrCat(what, " on rank ", rank_, " of group '", group_,
                                                      "': the other ranks did not join in time"));
    }
    absl::SleepFor(pause);
    pause = std::min(2 * pause, kLongestPause);
  }
}

absl::Status Link::Call(absl::string_view what, absl::Time deadline,
                        const std::function<Result(Comm)>& body) {
  absl::Status status;
  {
    DeviceScope on_device(runtime_->cuda(), device_);
    ExecutionSlot slot(runtime_.get(), deadline);
    if (broken()) return error();
    if (!slot.taken()) {
      status = absl::DeadlineExceededError(absl::StrCat(what, " on rank ", rank_, " of group '", group_,
                                                        "': NCCL hangs in another call of this process"));
    } else {
      const Result result = body(comm());
      if (result == Result::kSuccess) return absl::OkStatus();
      if (result != Result::kInProgress) status = FromNccl(what, result);
    }
  }
  if (status.ok()) status = AwaitReady(what, deadline);
  if (status.ok()) return status;
  if (!broken()) Break(status);
  return error();
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
  aborted_ = true;
}

void Link::OnWatch(std::function<bool()> look) {
  absl::MutexLock lock(&mutex_);
  looks_.push_back(std::move(look));
}

void Link::Watch() {
  if (!broken()) {
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
  std::vector<std::function<bool()>> looks;
  {
    absl::MutexLock lock(&mutex_);
    looks.swap(looks_);
  }
  for (auto& look : looks) {
    if (!look()) OnWatch(std::move(look));
  }
  ExchangeErrors();
}

void Link::ExchangeErrors() {
  absl::MutexLock lock(&store_mutex_);
  if (store_ == nullptr || error_shared_ || world_size_ == 1) return;
  const absl::Status mine = error();
  if (!mine.ok()) {
    error_shared_ = true;
    (void)store_->CompareSet(kErrorKey, "",
                             absl::StrCat(rank_, "/", static_cast<int>(mine.code()), "/", mine.message()));
    return;
  }
  if (works.load() == 0) return;  // no rank waits for another
  const absl::StatusOr<bool> has_error = store_->Check({kErrorKey});
  if (!has_error.ok() || !*has_error) return;
  const absl::StatusOr<std::string> text = store_->Get(kErrorKey, absl::ZeroDuration());
  if (!text.ok()) return;
  const std::vector<std::string> parts = absl::StrSplit(*text, absl::MaxSplits('/', 2));
  int code = 0;
  if (parts.size() != 3 || !absl::SimpleAtoi(parts[1], &code)) return;
  error_shared_ = true;
  Break(absl::Status(static_cast<absl::StatusCode>(code),
                     absl::StrCat("rank ", parts[0], " of group '", group_, "' gave up: ", parts[2])));
}

void Link::Close(absl::Duration timeout) {
  const absl::Time deadline = MonotonicNow() + timeout;
  if (!broken()) {
    auto finalize = [this](Comm comm) { return runtime_->nccl()->CommFinalize(comm); };
    if (Call("leaving", deadline, finalize).ok()) {
      ExecutionSlot slot(runtime_.get(), deadline);
      Comm left;
      {
        absl::MutexLock lock(&mutex_);
        left = comm_;
        comm_ = nullptr;
        aborted_ = true;
      }
      if (slot.taken() && left != nullptr) runtime_->nccl()->CommDestroy(left);
    }
  }
  bool over;
  {
    absl::MutexLock lock(&mutex_);
    auto quiet = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return aborted_ && looks_.empty(); };
    over = AwaitUntil(&mutex_, absl::Condition(&quiet), deadline);
  }
  if (over) ExchangeErrors();  // before the store goes
  {
    absl::MutexLock lock(&store_mutex_);
    store_ = nullptr;
  }
  // If an abort hangs, it occupies the runtime's thread, which keeps the resources that it may use.
  if (!over) return;
  runtime_->Remove(this);
  DeviceScope on_device(runtime_->cuda(), device_);
  if (scratch_ != nullptr) runtime_->cuda()->Free(scratch_);
  if (stream_ != nullptr) runtime_->cuda()->StreamDestroy(stream_);
  scratch_ = nullptr;
  stream_ = nullptr;
}

}  // namespace tandem::collectives::nccl

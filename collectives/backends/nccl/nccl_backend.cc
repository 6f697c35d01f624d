// SPDX-License-Identifier: Apache-2.0
#include "collectives/backends/nccl/nccl_backend.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/status.h"
#include "collectives/backends/nccl/dlopen_api.h"
#include "collectives/backends/nccl/issue.h"
#include "collectives/shape.h"

namespace tandem::collectives {
namespace nccl {
namespace {

constexpr absl::Duration kLeaveTimeout = absl::Seconds(2);

// The work that is queued on the stream before an event.
class QueuedWork final : public DeviceWork {
 public:
  QueuedWork(std::shared_ptr<Link> link, std::string what) : link_(std::move(link)), what_(std::move(what)) {
    ++link_->works;
  }
  ~QueuedWork() override {
    --link_->works;
    if (event_ != nullptr) cuda()->EventDestroy(event_);
  }
  absl::Status Record() {
    TANDEM_RETURN_IF_ERROR(FromCuda("cudaEventCreate", cuda()->EventCreate(&event_)));
    return FromCuda("cudaEventRecord", cuda()->EventRecord(event_, link_->stream()));
  }

  absl::StatusOr<bool> IsDone() override {
    // Checked first: an aborted kernel also ends, with undefined results.
    if (link_->broken()) return link_->error();
    const int state = cuda()->EventQuery(event_);
    if (link_->broken()) return link_->error();
    if (state == kCudaNotReady) return false;
    TANDEM_RETURN_IF_ERROR(FromCuda("cudaEventQuery", state));
    return true;
  }
  absl::Status Wait(absl::Time deadline) override {
    absl::Duration pause = absl::Microseconds(5);
    for (;;) {
      TANDEM_ASSIGN_OR_RETURN(const bool done, IsDone());
      if (done) return absl::OkStatus();
      if (MonotonicNow() >= deadline) {
        return absl::DeadlineExceededError(
            absl::StrCat(what_, " on rank ", link_->rank(), " of group '", link_->group(),
                         "' did not end in time: a rank did not come, or died"));
      }
      absl::SleepFor(pause);
      pause = std::min(pause * 2, absl::Milliseconds(1));
    }
  }
  absl::Status OrderStream(void* stream) override {
    if (link_->broken()) return link_->error();
    return FromCuda("cudaStreamWaitEvent", cuda()->StreamWaitEvent(stream, event_));
  }

 private:
  CudaApi* cuda() const { return link_->runtime()->cuda(); }
  absl::Status FromCuda(absl::string_view call, int error) {
    if (error == kCudaSuccess) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat(what_, " on rank ", link_->rank(), " of group '",
                                               link_->group(), "': ", call, ": ",
                                               cuda()->GetErrorString(error)));
  }

  const std::shared_ptr<Link> link_;
  const std::string what_;
  void* event_ = nullptr;
};

absl::StatusOr<int> LibraryVersion(NcclApi* nccl) {
  int version = 0;
  const Result result = nccl->GetVersion(&version);
  if (result != Result::kSuccess) {
    return absl::FailedPreconditionError(absl::StrCat("NCCL: ", nccl->GetErrorString(result)));
  }
  if (version < kOldestVersion) {
    // Before 2.9 the parts had one digit less.
    const int scale = version < 10000 ? 1000 : 10000;
    return absl::FailedPreconditionError(absl::StrCat("NCCL ", version / scale, ".", version % scale / 100,
                                                      ".", version % 100,
                                                      " is too old; 2.14 or later is needed"));
  }
  return version;
}

absl::StatusOr<int> ChooseDevice(CudaApi* cuda, absl::optional<int> wanted) {
  int count = 0, current = 0;
  const int error = cuda->GetDeviceCount(&count);
  if (error != kCudaSuccess || count == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("no CUDA device", error == kCudaSuccess ? "" : ": ",
                     error == kCudaSuccess ? "" : cuda->GetErrorString(error)));
  }
  if (wanted.has_value()) return *wanted;
  if (cuda->GetDevice(&current) == kCudaSuccess && current != 0) return current;
  int local_rank = 0;
  const char* text = std::getenv("LOCAL_RANK");
  if (text != nullptr && absl::SimpleAtoi(text, &local_rank) && local_rank >= 0 && local_rank < count) {
    return local_rank;
  }
  return 0;
}

absl::StatusOr<std::unique_ptr<Backend>> Make(std::shared_ptr<Runtime> runtime, absl::optional<int> wanted,
                                              const BackendOptions& options) {
  const std::string context = absl::StrCat("backend nccl of group '", options.group, "'");
  if (options.world_size < 1 || options.rank < 0 || options.rank >= options.world_size) {
    return absl::InvalidArgumentError(
        absl::StrCat(context, ": there is no rank ", options.rank, " of ", options.world_size));
  }
  TANDEM_ASSIGN_OR_RETURN(const int version, LibraryVersion(runtime->nccl()));
  TANDEM_ASSIGN_OR_RETURN(const int device, ChooseDevice(runtime->cuda(), wanted));
  UniqueId id;
  if (options.rank == 0) {
    const Result result = runtime->nccl()->GetUniqueId(&id);
    if (result != Result::kSuccess) {
      return absl::UnavailableError(
          absl::StrCat(context, ": ncclGetUniqueId: ", runtime->nccl()->GetErrorString(result)));
    }
    TANDEM_RETURN_IF_ERROR(options.store->Set("unique_id", absl::string_view(id.bytes, sizeof(id.bytes))));
  } else {
    const absl::StatusOr<std::string> text =
        options.store->Get("unique_id", options.deadline - MonotonicNow());
    if (!text.ok()) return Annotate(text.status(), absl::StrCat(context, ": rank 0 did not come"));
    if (text->size() != sizeof(id.bytes)) {
      return absl::InvalidArgumentError(absl::StrCat(context, ": rank 0 left ", text->size(),
                                                     " bytes as NCCL's unique id, not ", sizeof(id.bytes)));
    }
    std::memcpy(id.bytes, text->data(), sizeof(id.bytes));
  }
  Config config = ConfigFor(version);
  TANDEM_ASSIGN_OR_RETURN(
      auto link, Link::Connect(runtime, device, options, "ncclCommInitRankConfig", [&](Comm* comm) {
        return runtime->nccl()->CommInitRankConfig(comm, options.world_size, id, options.rank, &config);
      }));
  return std::make_unique<NcclBackend>(std::move(link), options);
}

}  // namespace

NcclBackend::NcclBackend(std::shared_ptr<Link> link, const BackendOptions& options)
    : link_(std::move(link)),
      world_size_(options.world_size),
      leave_timeout_(std::min(options.timeout, kLeaveTimeout)) {}

NcclBackend::~NcclBackend() { link_->Close(leave_timeout_); }

absl::Status NcclBackend::Supports(const Operation& operation) const { return CheckSupported(operation); }

absl::StatusOr<std::shared_ptr<DeviceWork>> NcclBackend::Enqueue(absl::Span<const Operation> operations) {
  if (link_->broken()) return link_->error();
  if (operations.empty()) return nullptr;
  absl::Duration timeout = absl::ZeroDuration();
  for (const Operation& o : operations) {
    TANDEM_RETURN_IF_ERROR(CheckSupported(o));
    TANDEM_RETURN_IF_ERROR(IsPointToPoint(o.kind) ? CheckPointToPoint(o, link_->rank(), world_size_)
                                                  : CheckCollective(o, link_->rank(), world_size_));
    if (o.device.index != link_->device()) {
      return absl::InvalidArgumentError(absl::StrCat(Describe(o), ": the tensor is on GPU ", o.device.index,
                                                     ", but group '", link_->group(), "' uses GPU ",
                                                     link_->device()));
    }
    timeout = std::max(timeout, o.timeout);
  }
  const std::string what = operations.size() == 1 ? Describe(operations[0])
                                                  : absl::StrCat("a batch of ", operations.size(), " from ",
                                                                 Describe(operations[0]));
  auto work = std::make_shared<QueuedWork>(link_, what);
  CudaApi* const cuda = link_->runtime()->cuda();
  int cuda_error = kCudaSuccess;
  absl::Status status = link_->Call(what, MonotonicNow() + timeout, [&](Comm comm) {
    // Order the group's stream behind the work that the caller has queued so far.
    void* before = nullptr;
    cuda_error = cuda->EventCreate(&before);
    if (cuda_error == kCudaSuccess) {
      cuda_error = cuda->EventRecord(before, nullptr);
      if (cuda_error == kCudaSuccess) cuda_error = cuda->StreamWaitEvent(link_->stream(), before);
      cuda->EventDestroy(before);
    }
    if (cuda_error != kCudaSuccess) return Result::kUnhandledCudaError;
    Issuer issuer{link_->runtime()->nccl(), cuda,          comm,       link_->stream(),
                  link_->scratch(),         link_->rank(), world_size_};
    return issuer.Issue(operations, &cuda_error);
  });
  if (!status.ok()) {
    if (cuda_error == kCudaSuccess) return status;
    return Annotate(status, absl::StrCat("CUDA: ", cuda->GetErrorString(cuda_error)));
  }
  DeviceScope on_device(cuda, link_->device());
  status = work->Record();
  if (!status.ok()) {
    link_->Break(status);
    return link_->error();
  }
  return work;
}

absl::Status NcclBackend::Run(const Operation& operation) {
  const absl::Time deadline = MonotonicNow() + operation.timeout;
  TANDEM_ASSIGN_OR_RETURN(auto work, Enqueue(absl::MakeConstSpan(&operation, 1)));
  const absl::Status status = work->Wait(deadline);
  if (status.ok()) return status;
  link_->Break(status);
  return link_->error();
}

void NcclBackend::StartPointToPoint(const Operation& operation, Done done) {
  const absl::Time deadline = MonotonicNow() + operation.timeout;
  auto work = Enqueue(absl::MakeConstSpan(&operation, 1));
  if (!work.ok()) return done(work.status());
  // The runtime's thread checks at intervals for the end of the message: device code waits on streams, not
  // for this.
  link_->OnWatch([link = link_.get(), work = *work, done = std::move(done), deadline, peer = operation.root] {
    absl::StatusOr<bool> is_done = work->IsDone();
    if (is_done.ok() && !*is_done) {
      if (MonotonicNow() < deadline) return false;
      link->Break(work->Wait(deadline));
      is_done = link->error();
    }
    done(is_done.ok() ? absl::StatusOr<int>(peer) : absl::StatusOr<int>(is_done.status()));
    return true;
  });
}

void NcclBackend::Abort(const absl::Status& reason) {
  if (!link_->broken()) link_->Break(reason.ok() ? absl::AbortedError("aborted") : reason);
}

absl::StatusOr<std::unique_ptr<NcclBackend>> NcclBackend::Split(int color, int key,
                                                                const BackendOptions& options) {
  const std::shared_ptr<Runtime> runtime = link_->shared_runtime();
  if (!runtime->nccl()->has_split()) {
    return absl::UnimplementedError("this NCCL has no ncclCommSplit; 2.18 or later is needed");
  }
  if (link_->broken()) return link_->error();
  TANDEM_ASSIGN_OR_RETURN(const int version, LibraryVersion(runtime->nccl()));
  Config config = ConfigFor(version);
  Comm made = nullptr;
  TANDEM_RETURN_IF_ERROR(link_->Call("ncclCommSplit", options.deadline, [&](Comm comm) {
    return runtime->nccl()->CommSplit(comm, color, key, &made, &config);
  }));
  if (made == nullptr) return nullptr;
  auto begin = [&](Comm* comm) {
    *comm = made;
    return Result::kInProgress;
  };
  TANDEM_ASSIGN_OR_RETURN(auto link,
                          Link::Connect(runtime, link_->device(), options, "ncclCommSplit", begin));
  return std::make_unique<NcclBackend>(std::move(link), options);
}

BackendFactory MakeFactory(std::shared_ptr<Runtime> runtime, absl::optional<int> device) {
  BackendFactory factory;
  factory.name = "nccl";
  factory.device = Device::Kind::kCuda;
  factory.compares_fingerprints = false;
  factory.viable = [runtime, device](const BackendOptions&) -> absl::Status {
    TANDEM_RETURN_IF_ERROR(LibraryVersion(runtime->nccl()).status());
    return ChooseDevice(runtime->cuda(), device).status();
  };
  factory.make = [runtime, device](const BackendOptions& options) { return Make(runtime, device, options); };
  return factory;
}

}  // namespace nccl

namespace {

// The groups of a process share a runtime, as they share its GPUs; it exists as long as one of them.
absl::StatusOr<std::shared_ptr<nccl::Runtime>> SharedRuntime() {
  static absl::Mutex& mutex = *new absl::Mutex;
  static auto& shared = *new std::weak_ptr<nccl::Runtime>;
  absl::MutexLock lock(&mutex);
  std::shared_ptr<nccl::Runtime> runtime = shared.lock();
  if (runtime == nullptr) {
    TANDEM_ASSIGN_OR_RETURN(nccl::Apis apis, nccl::LoadApis());
    runtime = std::make_shared<nccl::Runtime>(apis.nccl, apis.cuda);
    shared = runtime;
  }
  return runtime;
}

}  // namespace

BackendFactory NcclBackendFactory() {
  BackendFactory factory;
  factory.name = "nccl";
  factory.device = Device::Kind::kCuda;
  factory.compares_fingerprints = false;
  factory.viable = [](const BackendOptions& options) -> absl::Status {
    TANDEM_ASSIGN_OR_RETURN(auto runtime, SharedRuntime());
    return nccl::MakeFactory(std::move(runtime), absl::nullopt).viable(options);
  };
  factory.make = [](const BackendOptions& options) -> absl::StatusOr<std::unique_ptr<Backend>> {
    TANDEM_ASSIGN_OR_RETURN(auto runtime, SharedRuntime());
    return nccl::MakeFactory(std::move(runtime), absl::nullopt).make(options);
  };
  return factory;
}

}  // namespace tandem::collectives

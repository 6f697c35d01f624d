// SPDX-License-Identifier: Apache-2.0
#include "collectives/backends/nccl/nccl_backend.h"

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <utility>

#include "absl/container/inlined_vector.h"
#include "absl/functional/function_ref.h"
#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status.h"
#include "collectives/backends/nccl/dlopen_api.h"
#include "collectives/backends/nccl/issue.h"
#include "collectives/shape.h"

namespace tandem::collectives {
namespace nccl {
namespace {

using Events = absl::InlinedVector<Link::Event, 2>;

// The work that is queued on the stream before an event.
class QueuedWork final : public DeviceWork {
 public:
  QueuedWork(std::shared_ptr<Link> link, absl::Span<const Operation> operations)
      : link_(std::move(link)), first_(FingerprintOf(operations[0])), size_(operations.size()) {
    ++link_->works;
  }
  ~QueuedWork() override { --link_->works; }

  // The text is made only for errors.
  std::string Text() const {
    return size_ == 1 ? Describe(first_) : absl::StrCat("a batch of ", size_, " from ", Describe(first_));
  }
  // Tells the events before and after the work in its stream, and those of the streams that produce its
  // buffers. Called once, before the work is shared.
  void SetEvents(Events before, Link::Event done) {
    absl::MutexLock lock(&mutex_);
    before_ = std::move(before);
    done_ = std::move(done);
  }

  absl::StatusOr<bool> IsDone() override {
    cuda::EventQueries queries(cuda());
    return IsDone(&queries);
  }
  absl::Status AwaitStart() override {
    cuda::EventQueries queries(cuda());
    cuda::PollPause pause;
    for (;;) {
      TANDEM_ASSIGN_OR_RETURN(const absl::Time started, Started(&queries));
      if (started != absl::InfiniteFuture()) return absl::OkStatus();
      pause.Wait();
    }
  }
  absl::Status Wait(absl::Duration timeout) override {
    cuda::EventQueries queries(cuda());
    cuda::PollPause pause;
    for (;;) {
      TANDEM_ASSIGN_OR_RETURN(const bool done, IsDone(&queries));
      if (done) return absl::OkStatus();
      TANDEM_ASSIGN_OR_RETURN(const absl::Time started, Started(&queries));
      if (started != absl::InfiniteFuture() && MonotonicNow() >= started + timeout) {
        return absl::DeadlineExceededError(
            absl::StrCat(Text(), " on rank ", link_->rank(), " of group '", link_->group(), "' ran for ",
                         absl::FormatDuration(timeout), " and did not end: a rank did not come, or died"));
      }
      pause.Wait();
    }
  }
  absl::Status OrderStream(void* stream) override {
    if (link_->broken()) return link_->error();
    return FromCuda("cudaStreamWaitEvent", cuda()->StreamWaitEvent(stream, done_.get()));
  }

 private:
  absl::StatusOr<bool> IsDone(cuda::EventQueries* queries) {
    // Checked first: an aborted kernel also ends, with undefined results.
    if (link_->broken()) return link_->error();
    TANDEM_ASSIGN_OR_RETURN(const bool done, Query(queries, done_.get()));
    if (link_->broken()) return link_->error();
    return done;
  }
  cuda::CudaApi* cuda() const { return link_->runtime()->cuda(); }
  absl::Status FromCuda(absl::string_view call, int error) {
    if (error == cuda::kCudaSuccess) return absl::OkStatus();
    return absl::UnavailableError(absl::StrCat(Text(), " on rank ", link_->rank(), " of group '",
                                               link_->group(), "': ", call, ": ",
                                               cuda()->GetErrorString(error)));
  }
  // Returns true if all that was before the event is done.
  absl::StatusOr<bool> Query(cuda::EventQueries* queries, void* event) {
    const int state = queries->Query(event);
    if (state == cuda::kCudaNotReady) return false;
    TANDEM_RETURN_IF_ERROR(FromCuda("cudaEventQuery", state));
    return true;
  }
  // Returns the time at which the work was first found to have begun; InfiniteFuture if it waits for others.
  absl::StatusOr<absl::Time> Started(cuda::EventQueries* queries) {
    absl::MutexLock lock(&mutex_);
    if (started_ != absl::InfiniteFuture()) return started_;
    if (link_->broken()) return link_->error();
    while (!before_.empty()) {
      TANDEM_ASSIGN_OR_RETURN(const bool done, Query(queries, before_.back().get()));
      if (!done) return absl::InfiniteFuture();
      before_.pop_back();
    }
    started_ = MonotonicNow();
    return started_;
  }

  const std::shared_ptr<Link> link_;  // outlives the events
  const Fingerprint first_;
  const size_t size_;
  Link::Event done_;
  absl::Mutex mutex_;
  Events before_ ABSL_GUARDED_BY(mutex_);
  absl::Time started_ ABSL_GUARDED_BY(mutex_) = absl::InfiniteFuture();
};

// Returns OK if NCCL can use the memory at `data` on the link's GPU. `what` is for messages.
absl::Status CheckMemory(cuda::CudaApi* cuda, const Link& link, absl::FunctionRef<std::string()> what,
                         int said, const void* data) {
  cuda::MemoryKind kind = cuda::MemoryKind::kUnregistered;
  int device = 0;
  const int error = cuda->PointerGetAttributes(data, &kind, &device);
  if (error != cuda::kCudaSuccess) {
    cuda->GetLastError();
    kind = cuda::MemoryKind::kUnregistered;
  }
  if (kind == cuda::MemoryKind::kUnregistered) {
    return absl::InvalidArgumentError(
        absl::StrCat(what(), " is ordinary host memory, but the tensor is said to be on GPU ", said,
                     "; give memory of the GPU, or Device::Cpu() to use the group's CPU backend"));
  }
  if (kind == cuda::MemoryKind::kDevice && device != link.device()) {
    return absl::InvalidArgumentError(absl::StrCat(what(), " is memory of GPU ", device, ", but group '",
                                                   link.group(), "' uses GPU ", link.device()));
  }
  return absl::OkStatus();
}

// Returns OK if NCCL can use each buffer of `o` on the link's GPU.
absl::Status CheckMemory(cuda::CudaApi* cuda, const Link& link, const Operation& o) {
  auto check = [&](absl::string_view what, const void* data, size_t count) -> absl::Status {
    if (count == 0) return absl::OkStatus();
    return CheckMemory(
        cuda, link, [&] { return absl::StrCat(Describe(o), ": ", what); }, o.device.index, data);
  };
  TANDEM_RETURN_IF_ERROR(check("the input", o.in.data, o.in.count));
  if (o.out.data != o.in.data) TANDEM_RETURN_IF_ERROR(check("the output", o.out.data, o.out.count));
  // Even parts are one array.
  for (const ConstPart& part : o.even ? o.ins.first(std::min<size_t>(1, o.ins.size())) : o.ins)
    TANDEM_RETURN_IF_ERROR(check("a part of the input", part.data, part.count));
  for (const Part& part : o.even ? o.outs.first(std::min<size_t>(1, o.outs.size())) : o.outs)
    TANDEM_RETURN_IF_ERROR(check("a part of the output", part.data, part.count));
  return absl::OkStatus();
}

// Returns OK if no CUDA graph is being captured from the stream that produces the buffers of `o`.
absl::Status CheckNotCaptured(cuda::CudaApi* cuda, const Link& link, const Operation& o) {
  bool capturing = false;
  const int error = cuda->StreamIsCapturing(o.stream, &capturing);
  if (error == cuda::kCudaStreamCaptureImplicit) {
    cuda->GetLastError();
    capturing = true;
  } else if (error != cuda::kCudaSuccess) {
    cuda->GetLastError();
    return absl::InvalidArgumentError(absl::StrCat(Describe(o), ": CallOptions::stream is no stream of GPU ",
                                                   link.device(), ": ", cuda->GetErrorString(error)));
  }
  if (!capturing) return absl::OkStatus();
  return absl::FailedPreconditionError(
      absl::StrCat(Describe(o),
                   ": its stream is being captured into a CUDA graph, and backend nccl cannot "
                   "capture operations of group '",
                   link.group(), "'; call it before cudaStreamBeginCapture or after cudaStreamEndCapture"));
}

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

absl::StatusOr<int> ChooseDevice(cuda::CudaApi* cuda, absl::optional<int> wanted) {
  int count = 0, current = 0;
  const int error = cuda->GetDeviceCount(&count);
  if (error != cuda::kCudaSuccess || count == 0) {
    return absl::FailedPreconditionError(
        absl::StrCat("no CUDA device", error == cuda::kCudaSuccess ? "" : ": ",
                     error == cuda::kCudaSuccess ? "" : cuda->GetErrorString(error)));
  }
  if (wanted.has_value()) return *wanted;
  if (cuda->GetDevice(&current) == cuda::kCudaSuccess && current != 0) return current;
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
    : link_(std::move(link)), world_size_(options.world_size), timeout_(options.timeout) {}

NcclBackend::~NcclBackend() { link_->Close(timeout_); }

absl::Status NcclBackend::Supports(const Operation& operation) const { return CheckSupported(operation); }

absl::Status NcclBackend::Check(absl::Span<const Operation> operations) const {
  cuda::CudaApi* const cuda = link_->runtime()->cuda();
  void* last_stream = nullptr;
  for (size_t i = 0; i < operations.size(); ++i) {
    const Operation& o = operations[i];
    TANDEM_RETURN_IF_ERROR(CheckSupported(o));
    TANDEM_RETURN_IF_ERROR(IsPointToPoint(o.kind) ? CheckPointToPoint(o, link_->rank(), world_size_)
                                                  : CheckCollective(o, link_->rank(), world_size_));
    if (o.device.index != link_->device()) {
      return absl::InvalidArgumentError(absl::StrCat(Describe(o), ": the tensor is on GPU ", o.device.index,
                                                     ", but group '", link_->group(), "' uses GPU ",
                                                     link_->device()));
    }
    TANDEM_RETURN_IF_ERROR(CheckMemory(cuda, *link_, o));
    if (i == 0 || o.stream != last_stream) TANDEM_RETURN_IF_ERROR(CheckNotCaptured(cuda, *link_, o));
    last_stream = o.stream;
  }
  return absl::OkStatus();
}

absl::StatusOr<std::shared_ptr<DeviceWork>> NcclBackend::Enqueue(absl::Span<const Operation> operations) {
  if (link_->broken()) return link_->error();
  if (operations.empty()) return nullptr;
  cuda::CudaApi* const cuda = link_->runtime()->cuda();
  cuda::DeviceScope on_device(cuda, link_->device());
  TANDEM_RETURN_IF_ERROR(Check(operations));
  absl::Duration timeout = absl::ZeroDuration();
  for (const Operation& o : operations) timeout = std::max(timeout, o.timeout);
  auto work = std::make_shared<QueuedWork>(link_, operations);
  int cuda_error = cuda::kCudaSuccess;
  Events before;
  absl::Status status =
      link_->Call([&] { return work->Text(); }, MonotonicNow() + timeout,
                  [&](Comm comm) {
                    // Order the group's stream behind the streams that produce the buffers.
                    for (size_t i = 0; i < operations.size(); ++i) {
                      if (i > 0 && operations[i].stream == operations[i - 1].stream) continue;
                      Link::Event event = link_->TakeEvent(&cuda_error);
                      if (event != nullptr) cuda_error = cuda->EventRecord(event.get(), operations[i].stream);
                      if (cuda_error == cuda::kCudaSuccess)
                        cuda_error = cuda->StreamWaitEvent(link_->stream(), event.get());
                      if (cuda_error != cuda::kCudaSuccess) return Result::kUnhandledCudaError;
                      before.push_back(std::move(event));
                    }
                    Issuer issuer{link_->runtime()->nccl(), cuda,          comm,       link_->stream(),
                                  link_->scratch(),         link_->rank(), world_size_};
                    return issuer.Issue(operations, &cuda_error);
                  });
  Link::Event done;
  if (status.ok()) {
    // The communicator has accepted the operations: they are in the stream.
    done = link_->TakeEvent(&cuda_error);
    if (done != nullptr) cuda_error = cuda->EventRecord(done.get(), link_->stream());
    if (cuda_error != cuda::kCudaSuccess) {
      status = absl::UnavailableError(absl::StrCat(work->Text(), " of group '", link_->group(), "'"));
      link_->Break(status);
      status = link_->error();
    }
  }
  if (!status.ok()) {
    if (cuda_error == cuda::kCudaSuccess) return status;
    return Annotate(status, absl::StrCat("CUDA: ", cuda->GetErrorString(cuda_error)));
  }
  if (Link::Event last = link_->ExchangeLast(done)) before.push_back(std::move(last));
  work->SetEvents(std::move(before), std::move(done));
  return work;
}

absl::Status NcclBackend::Run(const Operation& operation) {
  TANDEM_ASSIGN_OR_RETURN(auto work, Enqueue(absl::MakeConstSpan(&operation, 1)));
  const absl::Status status = work->Wait(operation.timeout);
  if (status.ok()) return status;
  link_->Break(status);
  return link_->error();
}

void NcclBackend::StartPointToPoint(const Operation& operation, Done done) {
  done(absl::UnimplementedError(absl::StrCat("backend nccl, ", Name(operation.kind),
                                             ": messages are issued with Enqueue, which batches them")));
}

absl::StatusOr<int> NcclBackend::RunPointToPoint(const Operation& operation) {
  TANDEM_RETURN_IF_ERROR(Run(operation));
  return operation.root;
}

void NcclBackend::Abort(const absl::Status& reason) {
  if (!link_->broken()) link_->Break(reason.ok() ? absl::AbortedError("aborted") : reason);
}

absl::Status NcclBackend::RegisterBuffer(TensorView buffer) {
  if (!link_->runtime()->nccl()->has_register()) {
    return absl::UnimplementedError("this NCCL has no ncclCommRegister; 2.19 or later is needed");
  }
  const size_t bytes = buffer.count * SizeOf(buffer.dtype);
  if (bytes == 0) return absl::InvalidArgumentError("the buffer is empty");
  if (buffer.device.index != link_->device()) {
    return absl::InvalidArgumentError(absl::StrCat("the buffer is on GPU ", buffer.device.index,
                                                   ", but group '", link_->group(), "' uses GPU ",
                                                   link_->device()));
  }
  cuda::CudaApi* const cuda = link_->runtime()->cuda();
  const cuda::DeviceScope on_device(cuda, link_->device());
  TANDEM_RETURN_IF_ERROR(CheckMemory(
      cuda, *link_, [] { return std::string("the buffer"); }, buffer.device.index, buffer.data));
  if (registered_.count(buffer.data) > 0) {
    return absl::AlreadyExistsError("a buffer that begins there is registered; deregister it first");
  }
  void* handle = nullptr;
  TANDEM_RETURN_IF_ERROR(link_->LocalCall("ncclCommRegister", MonotonicNow() + timeout_, [&](Comm comm) {
    return link_->runtime()->nccl()->CommRegister(comm, buffer.data, bytes, &handle);
  }));
  registered_[buffer.data] = handle;
  return absl::OkStatus();
}

absl::Status NcclBackend::DeregisterBuffer(TensorView buffer) {
  const auto found = registered_.find(buffer.data);
  if (found == registered_.end()) return absl::NotFoundError("no buffer that begins there is registered");
  void* const handle = found->second;
  registered_.erase(found);
  return link_->LocalCall("ncclCommDeregister", MonotonicNow() + timeout_,
                          [&](Comm comm) { return link_->runtime()->nccl()->CommDeregister(comm, handle); });
}

bool NcclBackend::CanSplit() const { return link_->runtime()->nccl()->has_split(); }

absl::StatusOr<BackendFactory> NcclBackend::Split(int color, int key, const BackendOptions& options) {
  const std::shared_ptr<Runtime> runtime = link_->shared_runtime();
  if (!CanSplit()) {
    return absl::UnimplementedError("this NCCL has no ncclCommSplit; 2.18 or later is needed");
  }
  if (link_->broken()) return link_->error();
  TANDEM_ASSIGN_OR_RETURN(const int version, LibraryVersion(runtime->nccl()));
  const Config config = ConfigFor(version);
  TANDEM_ASSIGN_OR_RETURN(const Comm made, link_->SplitCommunicator(color, key, config, options.deadline));
  BackendFactory factory;
  factory.name = "nccl";
  factory.device = Device::Kind::kCuda;
  factory.compares_fingerprints = false;
  if (made == nullptr) return factory;
  bool taken = false;
  auto begin = [&](Comm* comm) {
    *comm = made;
    taken = true;
    return Result::kSuccess;
  };
  BackendOptions without_store = options;
  without_store.store = nullptr;
  absl::StatusOr<std::shared_ptr<Link>> link =
      Link::Connect(runtime, link_->device(), without_store, "ncclCommSplit", begin);
  if (!link.ok() && !taken) runtime->nccl()->CommAbort(made);  // it has no kernels to wait for
  // The first `make` takes the backend; a factory that is dropped before leaves the group.
  auto backend = std::make_shared<std::unique_ptr<NcclBackend>>();
  if (link.ok()) *backend = std::make_unique<NcclBackend>(*link, options);
  factory.make = [backend,
                  link](const BackendOptions& made_options) -> absl::StatusOr<std::unique_ptr<Backend>> {
    if (!link.ok()) return link.status();
    if (*backend == nullptr) {
      return absl::FailedPreconditionError(
          absl::StrCat("group '", made_options.group, "': its communicator has been taken already"));
    }
    (*link)->SetStore(made_options.store);
    return std::move(*backend);
  };
  return factory;
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

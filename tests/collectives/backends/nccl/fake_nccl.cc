// SPDX-License-Identifier: Apache-2.0
#include "tests/collectives/backends/nccl/fake_nccl.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/numeric/dtype.h"
#include "collectives/reduce/reduce.h"

namespace tandem::collectives::nccl {
namespace {

DType DTypeOfFake(Type type) {
  switch (type) {
    case Type::kI8:
      return DType::kI8;
    case Type::kU8:
      return DType::kU8;
    case Type::kI32:
      return DType::kI32;
    case Type::kI64:
      return DType::kI64;
    case Type::kF16:
      return DType::kF16;
    case Type::kBF16:
      return DType::kBF16;
    case Type::kF32:
      return DType::kF32;
    case Type::kF64:
      break;
  }
  return DType::kF64;
}

double FactorFrom(const void* bytes, Type type) {
  return DispatchDType(DTypeOfFake(type), [&](auto value) {
    std::memcpy(&value, bytes, sizeof(value));
    return static_cast<double>(static_cast<float>(value));
  });
}

std::vector<char> Bytes(const void* from, size_t n) {
  const char* begin = static_cast<const char*>(from);
  return std::vector<char>(begin, begin + n);
}

void Put(void* to, const std::vector<char>& bytes) {
  if (!bytes.empty()) std::memcpy(to, bytes.data(), bytes.size());
}

}  // namespace

class FakeNccl final : public NcclApi {
 public:
  explicit FakeNccl(FakeWorld* world) : world_(world) {}
  Result GetVersion(int* version) override {
    *version = world_->version;
    return Result::kSuccess;
  }
  Result GetUniqueId(UniqueId* id) override {
    absl::MutexLock lock(&world_->mutex_);
    std::memset(id, 0, sizeof(*id));
    std::memcpy(id->bytes, &world_->next_id_, sizeof(int));
    ++world_->next_id_;
    return Result::kSuccess;
  }
  // nccl.h: a communicator that is not blocking is in progress until all ranks have joined.
  Result CommInitRankConfig(Comm* comm, int ranks, UniqueId id, int rank, Config* config) override {
    if (world_->on_init) world_->on_init();
    absl::MutexLock lock(&world_->mutex_);
    if (config->blocking != 0 || config->magic != 0xcafebeef) world_->misuse_.push_back("config");
    int number;
    std::memcpy(&number, id.bytes, sizeof(int));
    auto& ring = world_->rings_[number];
    if (ring == nullptr) ring = std::make_shared<FakeRing>(ranks);
    *comm = NewComm(ring, rank);
    return Result::kInProgress;
  }
  // nccl.h: "ncclCommFinalize flushes all issued communications, and marks communicator state as
  // ncclInProgress. The state will change to ncclSuccess when the communicator is globally quiescent and
  // related resources are freed; then, calling ncclCommDestroy can locally free the rest of the resources".
  Result CommFinalize(Comm comm) override {
    absl::MutexLock lock(&world_->mutex_);
    FakeComm* const fake = world_->Find(comm, "CommFinalize");
    if (fake == nullptr) return Result::kInvalidArgument;
    fake->finalizing = true;
    return Result::kSuccess;
  }
  Result CommDestroy(Comm comm) override {
    absl::MutexLock lock(&world_->mutex_);
    if (StateOf(world_->Find(comm, "CommDestroy")) == Result::kInProgress)
      world_->misuse_.push_back("CommDestroy of a communicator that is in progress");
    auto goes_on = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(world_->mutex_) { return !world_->hang_destroy_; };
    world_->mutex_.Await(absl::Condition(&goes_on));
    Drop(world_->Find(comm, "CommDestroy"));
    return Result::kSuccess;
  }
  Result CommAbort(Comm comm) override {
    absl::MutexLock lock(&world_->mutex_);
    FakeComm* const fake = world_->Find(comm, "CommAbort");
    if (fake == nullptr) return Result::kInvalidArgument;
    // Kernels end without having computed.
    for (FakeCall& call : fake->calls) call.kernel->parts = 0;
    for (auto* queues : {&fake->sends, &fake->recvs}) {
      for (auto& [peer, calls] : *queues) {
        for (FakeCall& call : calls) call.kernel->parts = 0;
      }
    }
    // A split that is under way ends with its parent; NCCL frees the communicator that it was making.
    if (fake->splitting) {
      world_->live_.erase(fake->ring->splits[fake->rank].made);
      fake->ring->splits.erase(fake->rank);
    }
    Drop(fake);
    ++aborted_;
    if (depth_ == 0) world_->aborted_together_.push_back(std::exchange(aborted_, 0));
    world_->RunAll();
    return Result::kSuccess;
  }
  Result CommGetAsyncError(Comm comm, Result* error) override {
    absl::MutexLock lock(&world_->mutex_);
    FakeComm* const fake = world_->Find(comm, "CommGetAsyncError");
    if (fake == nullptr) return Result::kInvalidArgument;
    *error = StateOf(fake);
    return Result::kSuccess;
  }
  bool has_split() const override { return world_->has_split; }
  // NCCL's documentation of ncclCommSplit: "There must not be any outstanding NCCL operations on the
  // communicator to avoid a deadlock." Its source (init.cc): "*newcomm should be NCCL_COMM_NULL until comm
  // split fully complete", when another thread stores it.
  Result CommSplit(Comm comm, int color, int key, Comm* made, Config*) override {
    absl::MutexLock lock(&world_->mutex_);
    FakeComm* const parent = world_->Find(comm, "CommSplit");
    if (parent == nullptr) return Result::kInvalidArgument;
    if (!parent->calls.empty()) world_->misuse_.push_back("CommSplit with outstanding operations");
    *made = nullptr;
    FakeRing* const ring = parent->ring.get();
    ring->splits[parent->rank] = {
        color, key, color == kNoColor ? nullptr : reinterpret_cast<FakeComm*>(NewComm(nullptr, 0)), made};
    parent->splitting = true;
    if (ring->splits.size() < ring->members.size()) return Result::kInProgress;
    ++world_->splits_;
    std::map<int, std::vector<std::pair<int, FakeComm*>>> colors;
    for (auto& [rank, split] : ring->splits) {
      ring->members[rank]->splitting = false;
      *split.slot = reinterpret_cast<Comm>(split.made);
      if (split.made != nullptr) colors[split.color].push_back({split.key, split.made});
    }
    for (auto& [ignored, members] : colors) {
      std::stable_sort(members.begin(), members.end(), [](auto& a, auto& b) { return a.first < b.first; });
      auto child = std::make_shared<FakeRing>(static_cast<int>(members.size()));
      for (int rank = 0; rank < static_cast<int>(members.size()); ++rank)
        Join(members[rank].second, child, rank);
    }
    ring->splits.clear();
    return Result::kInProgress;
  }
  bool has_register() const override { return world_->has_register; }
  Result CommRegister(Comm comm, void* buffer, size_t bytes, void** handle) override {
    absl::MutexLock lock(&world_->mutex_);
    FakeComm* const fake = world_->Find(comm, "CommRegister");
    if (fake == nullptr || bytes == 0 || world_->fail_register) return Result::kInvalidArgument;
    *handle = static_cast<char*>(buffer) + 1;
    fake->registered.insert(*handle);
    return Result::kSuccess;
  }
  Result CommDeregister(Comm comm, void* handle) override {
    absl::MutexLock lock(&world_->mutex_);
    FakeComm* const fake = world_->Find(comm, "CommDeregister");
    if (fake == nullptr || fake->registered.erase(handle) == 0) return Result::kInvalidArgument;
    return Result::kSuccess;
  }
  const char* GetErrorString(Result result) override {
    return result == Result::kRemoteError ? "remote process exited or there was a network error"
                                          : "some error";
  }
  const char* GetLastError(Comm) override { return "the cable"; }

  Result GroupStart() override {
    if (depth_++ == 0) aborted_ = 0;
    return Result::kSuccess;
  }
  Result GroupEnd() override {
    if (--depth_ > 0) return Result::kSuccess;
    absl::MutexLock lock(&world_->mutex_);
    if (aborted_ > 0) world_->aborted_together_.push_back(std::exchange(aborted_, 0));
    if (!pending_.empty()) ++world_->groups_;
    auto kernel = std::make_shared<FakeKernel>();
    kernel->parts = static_cast<int>(pending_.size());
    for (auto& [comm, call] : pending_) {
      call.kernel = kernel;
      world_->Pending(&call.stream->queued);
      call.after = call.stream->queued;
      if (!call.after.empty() && call.after.back() == kernel) call.after.pop_back();
    }
    for (auto& [comm, call] : pending_) {
      if (call.stream->queued.empty() || call.stream->queued.back() != kernel)
        call.stream->queued.push_back(kernel);
      if (call.kind == FakeCall::kSend) {
        comm->sends[call.peer].push_back(call);
      } else if (call.kind == FakeCall::kRecv) {
        comm->recvs[call.peer].push_back(call);
      } else {
        comm->calls.push_back(call);
      }
    }
    pending_.clear();
    world_->RunAll();
    return Result::kInProgress;  // as non-blocking communicators like to
  }
  Result AllReduce(const void* in, void* out, size_t n, Type type, RedOp op, Comm comm,
                   void* stream) override {
    return Add(comm, {FakeCall::kAllReduce, in, out, n, type, op, 0, Of(stream), nullptr, {}});
  }
  Result Reduce(const void* in, void* out, size_t n, Type type, RedOp op, int root, Comm comm,
                void* stream) override {
    return Add(comm, {FakeCall::kReduce, in, out, n, type, op, root, Of(stream), nullptr, {}});
  }
  Result Broadcast(const void* in, void* out, size_t n, Type type, int root, Comm comm,
                   void* stream) override {
    return Add(comm, {FakeCall::kBroadcast, in, out, n, type, RedOp::kSum, root, Of(stream), nullptr, {}});
  }
  Result AllGather(const void* in, void* out, size_t n, Type type, Comm comm, void* stream) override {
    return Add(comm, {FakeCall::kAllGather, in, out, n, type, RedOp::kSum, 0, Of(stream), nullptr, {}});
  }
  Result ReduceScatter(const void* in, void* out, size_t n, Type type, RedOp op, Comm comm,
                       void* stream) override {
    return Add(comm, {FakeCall::kReduceScatter, in, out, n, type, op, 0, Of(stream), nullptr, {}});
  }
  Result Send(const void* in, size_t n, Type type, int peer, Comm comm, void* stream) override {
    return Add(comm, {FakeCall::kSend, in, nullptr, n, type, RedOp::kSum, peer, Of(stream), nullptr, {}});
  }
  Result Recv(void* out, size_t n, Type type, int peer, Comm comm, void* stream) override {
    return Add(comm, {FakeCall::kRecv, nullptr, out, n, type, RedOp::kSum, peer, Of(stream), nullptr, {}});
  }
  Result RedOpCreatePreMulSum(RedOp* op, void* factor, Type type, Comm comm) override {
    absl::MutexLock lock(&world_->mutex_);
    FakeComm* const fake = world_->Find(comm, "RedOpCreatePreMulSum");
    const int number = 5 + static_cast<int>(fake->factors.size());
    fake->factors[number] = FactorFrom(factor, type);
    *op = static_cast<RedOp>(number);
    ++world_->operators_;
    return Result::kSuccess;
  }
  // The factors stay, because kernels of the fake read them when they run; NCCL's have copied them.
  Result RedOpDestroy(RedOp, Comm) override {
    absl::MutexLock lock(&world_->mutex_);
    --world_->operators_;
    return Result::kSuccess;
  }

 private:
  static FakeStream* Of(void* stream) { return static_cast<FakeStream*>(stream); }
  Result StateOf(const FakeComm* fake) const ABSL_EXCLUSIVE_LOCKS_REQUIRED(world_->mutex_) {
    if (fake == nullptr) return Result::kInvalidArgument;
    if (fake->async_error != Result::kSuccess) return fake->async_error;
    const bool ready = fake->ring != nullptr && fake->ring->joined.size() == fake->ring->members.size() &&
                       !world_->hang_init && !fake->splitting;
    const bool flushed = !fake->finalizing || (fake->calls.empty() && !world_->hang_finalize_);
    return ready && flushed ? Result::kSuccess : Result::kInProgress;
  }
  Comm NewComm(std::shared_ptr<FakeRing> ring, int rank) ABSL_EXCLUSIVE_LOCKS_REQUIRED(world_->mutex_) {
    world_->all_.push_back(std::make_unique<FakeComm>());
    FakeComm* const comm = world_->all_.back().get();
    world_->live_.insert(comm);
    if (ring != nullptr) Join(comm, std::move(ring), rank);
    return reinterpret_cast<Comm>(comm);
  }
  static void Join(FakeComm* comm, std::shared_ptr<FakeRing> ring, int rank) {
    comm->rank = rank;
    ring->members[rank] = comm;
    ring->joined.insert(rank);
    comm->ring = std::move(ring);
  }
  void Drop(FakeComm* comm) ABSL_EXCLUSIVE_LOCKS_REQUIRED(world_->mutex_) {
    if (comm == nullptr) return;
    world_->live_.erase(comm);
    if (comm->ring != nullptr) comm->ring->members[comm->rank] = nullptr;
  }
  Result Add(Comm comm, FakeCall call) {
    absl::MutexLock lock(&world_->mutex_);
    FakeComm* const fake = world_->Find(comm, "a collective");
    if (fake == nullptr || depth_ == 0) return Result::kInvalidUsage;
    pending_.push_back({fake, std::move(call)});
    return Result::kInProgress;
  }

  FakeWorld* const world_;
  int depth_ = 0, aborted_ = 0;  // of the thread that has the turn
  std::vector<std::pair<FakeComm*, FakeCall>> pending_;
};

class FakeCuda final : public cuda::CudaApi {
 public:
  explicit FakeCuda(FakeWorld* world) : world_(world) {}
  int GetDeviceCount(int* count) override {
    *count = world_->devices;
    return world_->devices == 0 ? 100 : cuda::kCudaSuccess;
  }
  int GetDevice(int* device) override {
    Count("GetDevice");
    *device = device_;
    return cuda::kCudaSuccess;
  }
  // CUDA 12's release notes: "cudaSetDevice() now explicitly initializes the runtime after changing the
  // current device", that is, it makes the primary context.
  int SetDevice(int device) override {
    Count("SetDevice");
    absl::MutexLock lock(&world_->mutex_);
    device_ = device;
    world_->contexts_.insert(device);
    return cuda::kCudaSuccess;
  }
  int RuntimeGetVersion(int* version) override {
    *version = world_->runtime_version;
    return cuda::kCudaSuccess;
  }
  bool HasPrimaryContext(int device) override {
    absl::MutexLock lock(&world_->mutex_);
    return world_->contexts_.count(device) > 0;
  }
  // cudaGetLastError: "Returns the last error that has been produced by any of the runtime calls in the same
  // instance of the CUDA Runtime library in the host thread and resets it to cudaSuccess."
  int GetLastError() override {
    Count("GetLastError");
    return std::exchange(last_error_, cuda::kCudaSuccess);
  }
  int StreamCreateNonBlocking(void** stream) override {
    auto* const made = new FakeStream;
    *stream = made;
    absl::MutexLock lock(&world_->mutex_);
    NeedContext();
    world_->streams_.insert(made);
    return cuda::kCudaSuccess;
  }
  int StreamDestroy(void* stream) override {
    absl::MutexLock lock(&world_->mutex_);
    world_->streams_.erase(static_cast<FakeStream*>(stream));
    delete static_cast<FakeStream*>(stream);
    return cuda::kCudaSuccess;
  }
  // cudaStreamWaitEvent: later work of the stream waits for "all work captured in event", as of this call.
  int StreamWaitEvent(void* stream, void* event) override {
    Count("StreamWaitEvent");
    absl::MutexLock lock(&world_->mutex_);
    NeedContext();
    for (auto& kernel : static_cast<FakeEvent*>(event)->queued) {
      world_->StreamOf(stream)->queued.push_back(kernel);
    }
    return cuda::kCudaSuccess;
  }
  // cudaStreamIsCapturing: "If cudaStreamIsCapturing is called on the legacy default stream while a blocking
  // stream in the same context is capturing, it will return cudaErrorStreamCaptureImplicit".
  int StreamIsCapturing(void* stream, bool* capturing) override {
    Count("StreamIsCapturing");
    absl::MutexLock lock(&world_->mutex_);
    NeedContext();
    FakeStream* const asked = world_->StreamOf(stream);
    *capturing = asked->capturing;
    if (asked == &world_->legacy_ && world_->per_thread_.capturing) {
      return last_error_ = cuda::kCudaStreamCaptureImplicit;
    }
    return cuda::kCudaSuccess;
  }
  int ExchangeCaptureMode(int* mode) override {
    Count("ExchangeCaptureMode");
    std::swap(*mode, capture_mode_);
    return cuda::kCudaSuccess;
  }
  // cudaPointerGetAttributes: memory that CUDA does not know is cudaMemoryTypeUnregistered since CUDA 11.
  int PointerGetAttributes(const void* pointer, cuda::MemoryKind* kind, int* device) override {
    Count("PointerGetAttributes");
    absl::MutexLock lock(&world_->mutex_);
    NeedContext();
    const auto found = world_->memory_.find(pointer);
    const bool set = found != world_->memory_.end();
    *kind = set ? found->second.first : cuda::MemoryKind::kDevice;
    *device = set ? found->second.second : device_;
    return cuda::kCudaSuccess;
  }
  int EventCreate(void** event) override {
    Count("EventCreate");
    absl::MutexLock lock(&world_->mutex_);
    NeedContext();
    ++world_->events_created_;
    *event = new FakeEvent;
    return cuda::kCudaSuccess;
  }
  int EventDestroy(void* event) override {
    delete static_cast<FakeEvent*>(event);
    return cuda::kCudaSuccess;
  }
  int EventRecord(void* event, void* stream) override {
    Count("EventRecord");
    absl::MutexLock lock(&world_->mutex_);
    NeedContext();
    FakeStream* const from = world_->StreamOf(stream);
    if (from->capturing) world_->misuse_.push_back("EventRecord in a stream that is being captured");
    FakeQueue* const queue = &static_cast<FakeEvent*>(event)->queued;
    *queue = from->queued;
    // "The legacy default stream synchronizes with all other streams in the same CUcontext except for
    // non-blocking streams"; the per-thread default stream is a blocking one.
    if (from == &world_->legacy_) {
      queue->insert(queue->end(), world_->per_thread_.queued.begin(), world_->per_thread_.queued.end());
    }
    return cuda::kCudaSuccess;
  }
  // cudaEventQuery: "cudaErrorNotReady" is a result like any other, and stays behind as the last error. In
  // another capture mode than relaxed it would also end captures of other threads.
  int EventQuery(void* event) override {
    Count("EventQuery");
    absl::MutexLock lock(&world_->mutex_);
    NeedContext();
    const bool captures = world_->legacy_.capturing || world_->per_thread_.capturing;
    if (captures && capture_mode_ != cuda::kCaptureModeRelaxed)
      world_->misuse_.push_back("EventQuery during a capture");
    return world_->Pending(&static_cast<FakeEvent*>(event)->queued) ? last_error_ = cuda::kCudaNotReady
                                                                    : cuda::kCudaSuccess;
  }
  int Malloc(void** memory, size_t bytes) override {
    *memory = calloc(1, bytes);
    return cuda::kCudaSuccess;
  }
  int Free(void* memory) override {
    free(memory);
    return cuda::kCudaSuccess;
  }
  int HostAlloc(void** memory, size_t bytes) override { return Malloc(memory, bytes); }
  int FreeHost(void* memory) override { return Free(memory); }
  int MemcpyAsync(void* to, const void* from, size_t bytes, void*) override {
    Count("MemcpyAsync");
    std::memcpy(to, from, bytes);
    return cuda::kCudaSuccess;
  }
  const char* GetErrorString(int) override { return "no CUDA-capable device is detected"; }

 private:
  void Count(const char* call) {
    absl::MutexLock lock(&world_->calls_mutex_);
    ++world_->cuda_calls_[call];
  }
  // CUDA's documentation, "Initialization": the first function that needs a context makes the primary context
  // of the current device.
  void NeedContext() ABSL_EXCLUSIVE_LOCKS_REQUIRED(world_->mutex_) { world_->contexts_.insert(device_); }
  FakeWorld* const world_;
  static thread_local int device_, last_error_, capture_mode_;
};
thread_local int FakeCuda::device_ = 0;
thread_local int FakeCuda::last_error_ = cuda::kCudaSuccess;
thread_local int FakeCuda::capture_mode_ = 0;  // cudaStreamCaptureModeGlobal

FakeWorld::~FakeWorld() = default;
std::shared_ptr<NcclApi> FakeWorld::nccl() { return std::make_shared<FakeNccl>(this); }
std::shared_ptr<cuda::CudaApi> FakeWorld::cuda() { return std::make_shared<FakeCuda>(this); }

void FakeWorld::FailAsync(int rank, Result error) {
  absl::MutexLock lock(&mutex_);
  for (FakeComm* comm : live_) {
    if (comm->rank == rank) comm->async_error = error;
  }
}
int FakeWorld::communicators() {
  absl::MutexLock lock(&mutex_);
  return static_cast<int>(live_.size());
}
std::vector<int> FakeWorld::aborted_together() {
  absl::MutexLock lock(&mutex_);
  return aborted_together_;
}
std::vector<std::string> FakeWorld::misuse() {
  absl::MutexLock lock(&mutex_);
  return misuse_;
}

int FakeWorld::groups() {
  absl::MutexLock lock(&mutex_);
  return groups_;
}
int FakeWorld::splits() {
  absl::MutexLock lock(&mutex_);
  return splits_;
}
int FakeWorld::registered() {
  absl::MutexLock lock(&mutex_);
  int sum = 0;
  for (const FakeComm* comm : live_) sum += static_cast<int>(comm->registered.size());
  return sum;
}
int FakeWorld::operators() {
  absl::MutexLock lock(&mutex_);
  return operators_;
}
std::map<std::string, int> FakeWorld::TakeCudaCalls() {
  absl::MutexLock lock(&calls_mutex_);
  return std::exchange(cuda_calls_, {});
}
int FakeWorld::events_created() {
  absl::MutexLock lock(&mutex_);
  return events_created_;
}
int FakeWorld::streams() {
  absl::MutexLock lock(&mutex_);
  return static_cast<int>(streams_.size());
}
std::set<int> FakeWorld::contexts() {
  absl::MutexLock lock(&mutex_);
  return contexts_;
}
void FakeWorld::HangFinalize(bool hang) {
  absl::MutexLock lock(&mutex_);
  hang_finalize_ = hang;
}
void FakeWorld::HangDestroy(bool hang) {
  absl::MutexLock lock(&mutex_);
  hang_destroy_ = hang;
}
std::shared_ptr<FakeKernel> FakeWorld::QueueKernel(void* stream) {
  absl::MutexLock lock(&mutex_);
  auto kernel = std::make_shared<FakeKernel>();
  kernel->parts = 1;
  StreamOf(stream)->queued.push_back(kernel);
  return kernel;
}
void FakeWorld::Finish(const std::shared_ptr<FakeKernel>& kernel) {
  absl::MutexLock lock(&mutex_);
  kernel->parts = 0;
  RunAll();
}
void FakeWorld::Capture(void* stream, bool capturing) {
  absl::MutexLock lock(&mutex_);
  StreamOf(stream)->capturing = capturing;
}
void FakeWorld::SetMemory(const void* pointer, cuda::MemoryKind kind, int device) {
  absl::MutexLock lock(&mutex_);
  memory_[pointer] = {kind, device};
}

FakeStream* FakeWorld::StreamOf(void* handle) {
  const uintptr_t number = reinterpret_cast<uintptr_t>(handle);
  if (number <= 1) return &legacy_;
  if (number == 2) return &per_thread_;
  FakeStream* const stream = static_cast<FakeStream*>(handle);
  if (streams_.count(stream) > 0) return stream;
  misuse_.push_back("a stream that does not exist");
  return &legacy_;
}

bool FakeWorld::Pending(FakeQueue* queue) {
  queue->erase(
      std::remove_if(queue->begin(), queue->end(), [](const auto& kernel) { return kernel->parts <= 0; }),
      queue->end());
  return !queue->empty();
}

FakeComm* FakeWorld::Find(Comm comm, const char* call) {
  FakeComm* const fake = reinterpret_cast<FakeComm*>(comm);
  if (live_.count(fake) > 0) return fake;
  misuse_.push_back(absl::StrCat(call, " of a communicator that is gone"));
  return nullptr;
}

void FakeWorld::RunAll() {
  std::set<FakeRing*> rings;
  for (FakeComm* comm : live_) {
    if (comm->ring != nullptr) rings.insert(comm->ring.get());
  }
  for (bool ran = true; ran;) {  // a kernel may be the last that one of another ring waits for
    ran = false;
    for (FakeRing* ring : rings) ran = Run(ring) || ran;
  }
}

bool FakeWorld::Run(FakeRing* ring) {
  bool ran = false;
  while (RunCollective(ring)) ran = true;
  for (FakeComm* from : ring->members) {
    for (FakeComm* to : ring->members) {
      if (from == nullptr || to == nullptr) continue;
      auto &sends = from->sends[to->rank], &recvs = to->recvs[from->rank];
      while (!sends.empty() && !recvs.empty()) {
        FakeCall &send = sends.front(), &recv = recvs.front();
        if (Pending(&send.after) || Pending(&recv.after)) break;
        ran = true;
        if (send.n != recv.n) misuse_.push_back("a message of another size");
        Put(recv.out, Bytes(send.in, std::min(send.n, recv.n) * SizeOf(DTypeOfFake(send.type))));
        --send.kernel->parts;
        --recv.kernel->parts;
        sends.pop_front();
        recvs.pop_front();
      }
    }
  }
  return ran;
}

bool FakeWorld::RunCollective(FakeRing* ring) {
  const int size = static_cast<int>(ring->members.size());
  std::vector<FakeCall> calls;
  std::vector<double> factors;
  for (FakeComm* member : ring->members) {
    if (member == nullptr || member->calls.empty() || Pending(&member->calls.front().after)) return false;
    calls.push_back(member->calls.front());
    factors.push_back(member->factors.count(static_cast<int>(calls.back().op)) > 0
                          ? member->factors[static_cast<int>(calls.back().op)]
                          : 0);
  }
  const FakeCall& first = calls[0];
  for (const FakeCall& call : calls) {
    if (call.kind != first.kind || call.n != first.n || call.peer != first.peer)
      misuse_.push_back("a mismatch");
  }
  const DType dtype = DTypeOfFake(first.type);
  const size_t bytes = first.n * SizeOf(dtype);
  auto reduce = [&](size_t offset) {
    std::vector<const void*> sources;
    for (const FakeCall& call : calls) sources.push_back(static_cast<const char*>(call.in) + offset);
    const bool scaled = static_cast<int>(first.op) >= 5;
    const ReduceOp op = scaled                        ? ReduceOp::kPremulSum
                        : first.op == RedOp::kSum     ? ReduceOp::kSum
                        : first.op == RedOp::kProduct ? ReduceOp::kProduct
                        : first.op == RedOp::kMax     ? ReduceOp::kMax
                        : first.op == RedOp::kMin     ? ReduceOp::kMin
                                                      : ReduceOp::kAvg;
    std::vector<char> result(bytes);
    ReduceInRankOrder(op, dtype, sources, scaled ? factors : std::vector<double>(), size, first.n,
                      result.data());
    return result;
  };
  std::vector<std::vector<char>> results;
  switch (first.kind) {
    case FakeCall::kAllReduce:
    case FakeCall::kReduce:
      results.assign(size, reduce(0));
      break;
    case FakeCall::kBroadcast:
      results.assign(size, Bytes(calls[first.peer].in, bytes));
      break;
    case FakeCall::kAllGather: {
      std::vector<char> all;
      for (const FakeCall& call : calls) {
        const std::vector<char> one = Bytes(call.in, bytes);
        all.insert(all.end(), one.begin(), one.end());
      }
      results.assign(size, all);
      break;
    }
    default:
      for (int rank = 0; rank < size; ++rank) results.push_back(reduce(rank * bytes));
  }
  for (int rank = 0; rank < size; ++rank) {
    if (first.kind != FakeCall::kReduce || rank == first.peer) Put(calls[rank].out, results[rank]);
    --calls[rank].kernel->parts;
    ring->members[rank]->calls.pop_front();
  }
  return true;
}

}  // namespace tandem::collectives::nccl

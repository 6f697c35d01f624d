// SPDX-License-Identifier: Apache-2.0
#include "tests/base/cuda/fake_gpu.h"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/status.h"

namespace tandem::cuda {
namespace {

constexpr int kInvalidValue = 1, kMemoryAllocation = 2, kLaunchFailure = 719;

}  // namespace

class FakeGpuApi final : public CudaApi {
 public:
  explicit FakeGpuApi(FakeGpu* gpu) : gpu_(gpu) {}

  int RuntimeGetVersion(int* version) override {
    *version = 13000;
    return kCudaSuccess;
  }
  int GetDeviceCount(int* count) override {
    absl::MutexLock lock(&gpu_->mutex_);
    *count = gpu_->devices_;
    return gpu_->devices_ == 0 ? last_error_ = 100 : EnterWithoutContext("cudaGetDeviceCount");
  }
  int GetDevice(int* device) override {
    *device = device_;
    return kCudaSuccess;
  }
  int SetDevice(int device) override {
    absl::MutexLock lock(&gpu_->mutex_);
    device_ = device;
    gpu_->contexts_.insert(device);
    return kCudaSuccess;
  }
  bool HasPrimaryContext(int device) override {
    absl::MutexLock lock(&gpu_->mutex_);
    return gpu_->contexts_.count(device) > 0;
  }
  int GetLastError() override { return std::exchange(last_error_, kCudaSuccess); }
  int StreamCreateNonBlocking(void** stream) override {
    {
      absl::MutexLock lock(&gpu_->mutex_);
      if (const int error = Enter("cudaStreamCreateWithFlags")) return error;
    }
    *stream = gpu_->NewStream(device_);
    return kCudaSuccess;
  }
  // cudaStreamDestroy: "the function will return immediately and the resources associated with hStream will
  // be released automatically once the device has completed all work in hStream".
  int StreamDestroy(void* stream) override {
    gpu_->DestroyStream(stream);
    return kCudaSuccess;
  }
  int StreamWaitEvent(void* stream, void* event) override {
    absl::MutexLock lock(&gpu_->mutex_);
    if (const int error = Enter("cudaStreamWaitEvent")) return error;
    FakeGpu::Stream* const waiting = gpu_->Find(stream, device_);
    const auto found = gpu_->events_.find(event);
    if (waiting == nullptr || found == gpu_->events_.end()) return last_error_ = kCudaInvalidResourceHandle;
    if (waiting->capturing) gpu_->misuse_.push_back("cudaStreamWaitEvent in a stream that is being captured");
    gpu_->Enqueue(
        waiting,
        {.kind = FakeGpu::Operation::kWait, .event = found->second, .number = found->second->recorded});
    gpu_->Pump();
    return kCudaSuccess;
  }
  int EventCreate(void** event) override {
    absl::MutexLock lock(&gpu_->mutex_);
    if (const int error = Enter("cudaEventCreateWithFlags")) return error;
    auto made = std::make_shared<FakeGpu::Event>();
    made->device = device_;
    *event = made.get();
    gpu_->events_[made.get()] = made;
    return kCudaSuccess;
  }
  int EventDestroy(void* event) override {
    absl::MutexLock lock(&gpu_->mutex_);
    if (gpu_->events_.erase(event) == 0) gpu_->misuse_.push_back("cudaEventDestroy of no event");
    return kCudaSuccess;
  }
  // cudaEventRecord: event and stream must be of the same device.
  int EventRecord(void* event, void* stream) override {
    absl::MutexLock lock(&gpu_->mutex_);
    if (const int error = Enter("cudaEventRecord")) return error;
    FakeGpu::Stream* const from = gpu_->Find(stream, device_);
    const auto found = gpu_->events_.find(event);
    if (from == nullptr || found == gpu_->events_.end() || found->second->device != from->device)
      return last_error_ = kCudaInvalidResourceHandle;
    if (from->capturing) gpu_->misuse_.push_back("cudaEventRecord in a stream that is being captured");
    gpu_->Enqueue(
        from,
        {.kind = FakeGpu::Operation::kRecord, .event = found->second, .number = ++found->second->recorded});
    gpu_->Pump();
    return kCudaSuccess;
  }
  int EventQuery(void* event) override {
    absl::MutexLock lock(&gpu_->mutex_);
    if (const int error = Enter("cudaEventQuery")) return error;
    gpu_->Pump();
    const auto found = gpu_->events_.find(event);
    if (found == gpu_->events_.end()) return last_error_ = kCudaInvalidResourceHandle;
    return found->second->reached >= found->second->recorded ? kCudaSuccess : last_error_ = kCudaNotReady;
  }
  int StreamIsCapturing(void* stream, bool* capturing) override {
    absl::MutexLock lock(&gpu_->mutex_);
    if (const int error = Enter("cudaStreamIsCapturing")) return error;
    FakeGpu::Stream* const asked = gpu_->Find(stream, device_);
    if (asked == nullptr) return last_error_ = kCudaInvalidResourceHandle;
    *capturing = asked->capturing;
    return kCudaSuccess;
  }
  int ExchangeCaptureMode(int* mode) override {
    std::swap(*mode, capture_mode_);
    return kCudaSuccess;
  }
  int PointerGetAttributes(const void* pointer, MemoryKind* kind, int* device) override {
    absl::MutexLock lock(&gpu_->mutex_);
    if (const int error = Enter("cudaPointerGetAttributes")) return error;
    bool on_device = false;
    *kind = MemoryKind::kUnregistered;
    *device = -1;
    if (gpu_->ContentsAt(pointer, 1, &on_device) == nullptr) return kCudaSuccess;
    *kind = on_device ? MemoryKind::kDevice : MemoryKind::kHost;
    *device = 0;
    if (on_device) *device = std::prev(gpu_->memory_.upper_bound(CharOf(pointer)))->second.device;
    return kCudaSuccess;
  }
  int Malloc(void** memory, size_t bytes) override {
    *memory = gpu_->Allocate(device_, (bytes + sizeof(float) - 1) / sizeof(float));
    return kCudaSuccess;
  }
  int Free(void* memory) override {
    gpu_->Free(memory);
    return kCudaSuccess;
  }
  int HostAlloc(void** memory, size_t bytes) override {
    absl::MutexLock lock(&gpu_->mutex_);
    if (Enter("cudaHostAlloc") != kCudaSuccess) return last_error_ = kMemoryAllocation;
    *memory = std::malloc(bytes);
    std::memset(*memory, 0xA5, bytes);
    gpu_->pinned_[static_cast<char*>(*memory)] = bytes;
    return kCudaSuccess;
  }
  int FreeHost(void* memory) override {
    absl::MutexLock lock(&gpu_->mutex_);
    if (gpu_->pinned_.erase(static_cast<char*>(memory)) == 0)
      gpu_->misuse_.push_back("cudaFreeHost of no memory");
    std::free(memory);
    return kCudaSuccess;
  }
  int MemcpyAsync(void* to, const void* from, size_t bytes, void* stream) override {
    absl::MutexLock lock(&gpu_->mutex_);
    if (const int error = Enter("cudaMemcpyAsync")) return error;
    FakeGpu::Stream* const in = gpu_->Find(stream, device_);
    if (in == nullptr) return last_error_ = kCudaInvalidResourceHandle;
    bool to_device = false, from_device = false;
    // CUDA Programming Guide, "Asynchronous Concurrent Execution": copies are asynchronous only if host
    // memory is pinned.
    if (gpu_->ContentsAt(to, bytes, &to_device) == nullptr ||
        gpu_->ContentsAt(from, bytes, &from_device) == nullptr) {
      gpu_->misuse_.push_back("a copy of host memory that is not pinned");
      return last_error_ = kInvalidValue;
    }
    if (to_device == from_device) gpu_->misuse_.push_back("a copy that is neither to nor from a GPU");
    ++gpu_->copies_;
    gpu_->Enqueue(in, {.kind = FakeGpu::Operation::kCopy, .to = to, .from = from, .bytes = bytes});
    gpu_->Pump();
    return kCudaSuccess;
  }
  const char* GetErrorString(int error) override {
    return error == kLaunchFailure      ? "unspecified launch failure"
           : error == kMemoryAllocation ? "out of memory"
           : error == 100               ? "no CUDA-capable device is detected"
                                        : "invalid argument";
  }

 private:
  static char* CharOf(const void* pointer) { return const_cast<char*>(static_cast<const char*>(pointer)); }
  // Counts a call, and returns the error that the test wants of it. CUDA's documentation, "Initialization":
  // the first function that needs a context makes the primary context of the current device.
  int Enter(const char* call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(gpu_->mutex_) {
    gpu_->contexts_.insert(device_);
    return EnterWithoutContext(call);
  }
  int EnterWithoutContext(const char* call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(gpu_->mutex_) {
    ++gpu_->calls_;
    if (gpu_->failing_ != call || gpu_->succeed_before_-- > 0) return kCudaSuccess;
    gpu_->failing_.clear();
    return last_error_ = kLaunchFailure;
  }

  FakeGpu* const gpu_;
  static thread_local int device_, last_error_, capture_mode_;
};
thread_local int FakeGpuApi::device_ = 0;
thread_local int FakeGpuApi::last_error_ = kCudaSuccess;
thread_local int FakeGpuApi::capture_mode_ = 0;

FakeGpu::~FakeGpu() {
  for (auto& [address, memory] : memory_) {
    munmap(address, memory.mapped);
    munmap(memory.contents, memory.mapped);
  }
}

std::shared_ptr<CudaApi> FakeGpu::api() { return std::make_shared<FakeGpuApi>(this); }

float* FakeGpu::Allocate(int device, size_t floats) {
  const size_t page = static_cast<size_t>(sysconf(_SC_PAGESIZE));
  Memory memory;
  memory.bytes = floats * sizeof(float);
  memory.mapped = (memory.bytes + page) / page * page;
  memory.device = device;
  const int file = memfd_create("fake_gpu", MFD_CLOEXEC);
  TANDEM_CHECK(file >= 0 && ftruncate(file, static_cast<off_t>(memory.mapped)) == 0);
  void* const address = mmap(nullptr, memory.mapped, PROT_NONE, MAP_SHARED, file, 0);
  void* const contents = mmap(nullptr, memory.mapped, PROT_READ | PROT_WRITE, MAP_SHARED, file, 0);
  TANDEM_CHECK(address != MAP_FAILED && contents != MAP_FAILED);
  close(file);
  memory.contents = static_cast<char*>(contents);
  absl::MutexLock lock(&mutex_);
  memory_[static_cast<char*>(address)] = memory;
  return static_cast<float*>(address);
}

void FakeGpu::Free(void* memory) {
  absl::MutexLock lock(&mutex_);
  const auto found = memory_.find(static_cast<char*>(memory));
  TANDEM_CHECK(found != memory_.end());
  munmap(found->first, found->second.mapped);
  munmap(found->second.contents, found->second.mapped);
  memory_.erase(found);
}

std::vector<float> FakeGpu::Read(const float* memory, size_t floats) {
  absl::MutexLock lock(&mutex_);
  bool on_device = false;
  const char* const from = ContentsAt(memory, floats * sizeof(float), &on_device);
  TANDEM_CHECK(from != nullptr && on_device);
  std::vector<float> values(floats);
  std::memcpy(values.data(), from, floats * sizeof(float));
  return values;
}

void FakeGpu::Write(float* memory, const std::vector<float>& values) {
  absl::MutexLock lock(&mutex_);
  bool on_device = false;
  char* const to = ContentsAt(memory, values.size() * sizeof(float), &on_device);
  TANDEM_CHECK(to != nullptr && on_device);
  std::memcpy(to, values.data(), values.size() * sizeof(float));
}

void* FakeGpu::NewStream(int device) {
  absl::MutexLock lock(&mutex_);
  auto stream = std::make_unique<Stream>();
  stream->device = device;
  void* const handle = stream.get();
  streams_[handle] = std::move(stream);
  return handle;
}

void FakeGpu::DestroyStream(void* stream) {
  absl::MutexLock lock(&mutex_);
  const auto found = streams_.find(stream);
  if (found == streams_.end()) {
    misuse_.push_back("cudaStreamDestroy of no stream");
    return;
  }
  for (const Operation& operation : found->second->queue) {
    if (operation.kind == Operation::kCopy)
      misuse_.push_back("a stream is destroyed before its copies have ended");
  }
  streams_.erase(found);
}

std::shared_ptr<FakeGpu::Kernel> FakeGpu::QueueKernel(void* stream, Body body) {
  auto kernel = std::make_shared<Kernel>();
  kernel->body = std::move(body);
  absl::MutexLock lock(&mutex_);
  Enqueue(Find(stream, 0), {.kind = Operation::kKernel, .kernel = kernel});
  return kernel;
}

void FakeGpu::Finish(const std::shared_ptr<Kernel>& kernel) {
  absl::MutexLock lock(&mutex_);
  kernel->may_end = true;
  Pump();
}

void FakeGpu::Hold(bool hold) {
  absl::MutexLock lock(&mutex_);
  hold_ = hold;
  Pump();
}

void FakeGpu::HoldCopies(bool hold) {
  absl::MutexLock lock(&mutex_);
  hold_copies_ = hold;
  Pump();
}

void FakeGpu::Capture(void* stream, bool capturing) {
  absl::MutexLock lock(&mutex_);
  Find(stream, 0)->capturing = capturing;
}

void FakeGpu::Fail(const std::string& call, int after) {
  absl::MutexLock lock(&mutex_);
  failing_ = call;
  succeed_before_ = after;
}
bool FakeGpu::HasFailed() {
  absl::MutexLock lock(&mutex_);
  return std::exchange(failing_, "").empty();
}

int FakeGpu::calls() {
  absl::MutexLock lock(&mutex_);
  return calls_;
}
int FakeGpu::copies() {
  absl::MutexLock lock(&mutex_);
  return copies_;
}
int FakeGpu::streams() {
  absl::MutexLock lock(&mutex_);
  return static_cast<int>(streams_.size());
}
int FakeGpu::events() {
  absl::MutexLock lock(&mutex_);
  return static_cast<int>(events_.size());
}
int FakeGpu::pinned() {
  absl::MutexLock lock(&mutex_);
  return static_cast<int>(pinned_.size());
}
std::set<int> FakeGpu::contexts() {
  absl::MutexLock lock(&mutex_);
  return contexts_;
}
std::vector<std::string> FakeGpu::misuse() {
  absl::MutexLock lock(&mutex_);
  return misuse_;
}

FakeGpu::Stream* FakeGpu::Find(void* handle, int device) {
  const uintptr_t number = reinterpret_cast<uintptr_t>(handle);
  if (number <= 2) {
    Stream& stream =
        number == 2 ? per_thread_streams_[{device, std::this_thread::get_id()}] : default_streams_[device];
    stream.device = device;
    (number == 2 ? stream.per_thread : stream.legacy) = true;
    return &stream;
  }
  const auto found = streams_.find(handle);
  if (found != streams_.end()) return found->second.get();
  misuse_.push_back("a handle that is no stream");
  return nullptr;
}

// Work in the legacy stream runs after all earlier work of the per-thread streams of its device, and their
// later work runs after it.
void FakeGpu::Enqueue(Stream* stream, Operation operation) {
  if (stream->per_thread) WaitFor(stream, &default_streams_[stream->device]);
  if (stream->legacy) {
    for (auto& [key, other] : per_thread_streams_) {
      if (other.device == stream->device) WaitFor(stream, &other);
    }
  }
  stream->queue.push_back(std::move(operation));
}

void FakeGpu::WaitFor(Stream* stream, Stream* other) {
  if (other->queue.empty()) return;
  auto event = std::make_shared<Event>();
  event->recorded = 1;
  other->queue.push_back({.kind = Operation::kRecord, .event = event, .number = 1});
  stream->queue.push_back({.kind = Operation::kWait, .event = event, .number = 1});
}

char* FakeGpu::ContentsAt(const void* at, size_t bytes, bool* on_device) {
  char* const address = const_cast<char*>(static_cast<const char*>(at));
  *on_device = true;
  auto found = memory_.upper_bound(address);
  if (found != memory_.begin()) {
    found = std::prev(found);
    if (address + bytes <= found->first + found->second.bytes)
      return found->second.contents + (address - found->first);
  }
  *on_device = false;
  auto pinned = pinned_.upper_bound(address);
  if (pinned == pinned_.begin()) return nullptr;
  pinned = std::prev(pinned);
  return address + bytes <= pinned->first + pinned->second ? address : nullptr;
}

void FakeGpu::Pump() {
  if (hold_) return;
  for (bool ran = true; ran;) {  // one stream may wait for another
    ran = false;
    for (auto& [handle, stream] : streams_) {
      while (RunFirst(stream.get())) ran = true;
    }
    for (auto& [device, stream] : default_streams_) {
      while (RunFirst(&stream)) ran = true;
    }
    for (auto& [key, stream] : per_thread_streams_) {
      while (RunFirst(&stream)) ran = true;
    }
  }
}

bool FakeGpu::RunFirst(Stream* stream) {
  if (stream->queue.empty()) return false;
  const Operation& operation = stream->queue.front();
  bool on_device;
  switch (operation.kind) {
    case Operation::kCopy: {
      if (hold_copies_) return false;
      char* const to = ContentsAt(operation.to, operation.bytes, &on_device);
      const char* const from = ContentsAt(operation.from, operation.bytes, &on_device);
      if (to == nullptr || from == nullptr) {
        misuse_.push_back("memory was freed before a copy of it had ended");
      } else {
        std::memcpy(to, from, operation.bytes);
      }
      break;
    }
    case Operation::kRecord:
      operation.event->reached = operation.number;
      break;
    case Operation::kWait:
      if (operation.event->reached < operation.number) return false;
      break;
    case Operation::kKernel:
      if (!operation.kernel->may_end) return false;
      if (operation.kernel->body) {
        operation.kernel->body(
            [&](const float* at) { return reinterpret_cast<float*>(ContentsAt(at, 1, &on_device)); });
      }
      break;
  }
  stream->queue.pop_front();
  return true;
}

}  // namespace tandem::cuda

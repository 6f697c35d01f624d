// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_BASE_CUDA_FAKE_GPU_H_
#define TANDEM_TESTS_BASE_CUDA_FAKE_GPU_H_

// GPUs in this process, for tests of code that copies to and from them. Device memory is memory of this
// process under another address: the processor faults at the address that the program has, so a test crashes
// if code under test reads or writes rows with the CPU. Streams run as far as the test lets them, so that a
// copy takes the contents which its memory has then. Comments name the documentation that a behaviour comes
// from.

#include <cstddef>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/cuda/cuda_api.h"

namespace tandem::cuda {

// The fake machine. Thread-safe; outlives all objects made from it.
class FakeGpu {
 public:
  explicit FakeGpu(int devices = 2) : devices_(devices) {}
  ~FakeGpu();
  // Returns the CUDA runtime of one process.
  std::shared_ptr<CudaApi> api();

  // Device memory.
  float* Allocate(int device, size_t floats);
  void Free(void* memory);
  std::vector<float> Read(const float* memory, size_t floats);
  void Write(float* memory, const std::vector<float>& values);

  // Streams. CUDA's documentation, "Stream synchronization behavior": nullptr and 1 (cudaStreamLegacy) are
  // the legacy default stream of the current device, 2 (cudaStreamPerThread) is the calling thread's own
  // default stream there. These two synchronise with each other; NewStream makes non-blocking streams, which
  // synchronise with neither.
  void* NewStream(int device);
  void DestroyStream(void* stream);
  // A kernel of the program. Its stream does not get past it before Finish was called. `body` then runs in
  // the stream's order; it accesses device memory where `contents` says.
  using Contents = std::function<float*(const float*)>;
  using Body = std::function<void(const Contents& contents)>;
  struct Kernel {
    Body body;
    bool may_end = false;
  };
  std::shared_ptr<Kernel> QueueKernel(void* stream, Body body = nullptr);
  void Finish(const std::shared_ptr<Kernel>& kernel);
  // While set, no stream runs anything.
  void Hold(bool hold);
  // While set, no copy ends, nor the work after it in its stream.
  void HoldCopies(bool hold);
  // As cudaStreamBeginCapture and cudaStreamEndCapture.
  void Capture(void* stream, bool capturing);

  // Makes the call of this name ("cudaMemcpyAsync") fail once, after `after` more of them have succeeded.
  void Fail(const std::string& call, int after = 0);
  // Returns whether the failure has happened, and takes it back if not.
  bool HasFailed();

  int calls();                        // of any function
  int copies();                       // cudaMemcpyAsync
  int streams();                      // that exist
  int events();                       // that exist
  int pinned();                       // allocations of pinned memory that exist
  std::set<int> contexts();           // the devices that have a primary context
  std::vector<std::string> misuse();  // a copy of memory that is not pinned, and the like

 private:
  friend class FakeGpuApi;
  struct Event {
    int device = 0;
    uint64_t recorded = 0, reached = 0;
  };
  struct Operation {
    enum Kind { kCopy, kRecord, kWait, kKernel } kind;
    void* to = nullptr;
    const void* from = nullptr;
    size_t bytes = 0;
    std::shared_ptr<Event> event;
    uint64_t number = 0;  // of the recording
    std::shared_ptr<Kernel> kernel;
  };
  struct Stream {
    int device = 0;
    bool legacy = false, per_thread = false;
    bool capturing = false;
    std::deque<Operation> queue;
  };
  struct Memory {
    size_t bytes = 0, mapped = 0;
    int device = 0;
    char* contents = nullptr;  // where the fake reads and writes it
  };

  void Pump() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool RunFirst(Stream* stream) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns where the fake accesses [at, at + bytes), and whether that is device memory; null if it is
  // neither device memory nor pinned.
  char* ContentsAt(const void* at, size_t bytes, bool* on_device) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the stream of a handle; null, after a note of the misuse, if there is none. CUDA leaves it
  // undefined what such a handle does.
  Stream* Find(void* handle, int device) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Enqueue(Stream* stream, Operation operation) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Makes later work of `stream` wait for the work that `other` has now.
  void WaitFor(Stream* stream, Stream* other) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  const int devices_;
  absl::Mutex mutex_;
  std::map<char*, Memory> memory_ ABSL_GUARDED_BY(mutex_);
  std::map<char*, size_t> pinned_ ABSL_GUARDED_BY(mutex_);
  std::map<void*, std::unique_ptr<Stream>> streams_ ABSL_GUARDED_BY(mutex_);
  std::map<int, Stream> default_streams_ ABSL_GUARDED_BY(mutex_);  // [device]
  std::map<std::pair<int, std::thread::id>, Stream> per_thread_streams_
      ABSL_GUARDED_BY(mutex_);  // [device, thread]
  std::map<void*, std::shared_ptr<Event>> events_ ABSL_GUARDED_BY(mutex_);
  std::set<int> contexts_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> misuse_ ABSL_GUARDED_BY(mutex_);
  std::string failing_ ABSL_GUARDED_BY(mutex_);
  int succeed_before_ ABSL_GUARDED_BY(mutex_) = 0;
  bool hold_ ABSL_GUARDED_BY(mutex_) = false;
  bool hold_copies_ ABSL_GUARDED_BY(mutex_) = false;
  int calls_ ABSL_GUARDED_BY(mutex_) = 0;
  int copies_ ABSL_GUARDED_BY(mutex_) = 0;
};

}  // namespace tandem::cuda

#endif  // TANDEM_TESTS_BASE_CUDA_FAKE_GPU_H_

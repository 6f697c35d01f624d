// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_COLLECTIVES_BACKENDS_NCCL_FAKE_NCCL_H_
#define TANDEM_TESTS_COLLECTIVES_BACKENDS_NCCL_FAKE_NCCL_H_

// NCCL and CUDA in this process. Ranks are threads and device memory is host memory. A "kernel" runs when all
// ranks that it needs have issued theirs, and all that was before it in its streams has run. It computes real
// results, and fails if the test says so. Comments name the documentation that a behaviour comes from.

#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/cuda/cuda_api.h"
#include "collectives/backends/nccl/nccl_api.h"

namespace tandem::collectives::nccl {

struct FakeKernel {
  int parts = 0;  // calls that have not run
};
using FakeQueue = std::vector<std::shared_ptr<FakeKernel>>;  // what later work waits for
struct FakeStream {
  FakeQueue queued;
  bool capturing = false;
};
struct FakeEvent {
  FakeQueue queued;
};

struct FakeRing;
struct FakeCall {
  enum Kind { kAllReduce, kReduce, kBroadcast, kAllGather, kReduceScatter, kSend, kRecv } kind;
  const void* in;
  void* out;
  size_t n;
  Type type;
  RedOp op;
  int peer;  // or root
  FakeStream* stream;
  std::shared_ptr<FakeKernel> kernel;
  FakeQueue after;  // earlier work of the stream
};
struct FakeComm {
  std::shared_ptr<FakeRing> ring;
  int rank = 0;
  Result async_error = Result::kSuccess;
  bool splitting = false;
  bool finalizing = false;
  std::map<int, double> factors;  // by number of a made RedOp
  std::set<void*> registered;     // handles of buffers
  std::deque<FakeCall> calls;     // collectives, then messages by peer
  std::map<int, std::deque<FakeCall>> sends, recvs;
};
struct FakeRing {
  explicit FakeRing(int size) : members(size, nullptr) {}
  std::vector<FakeComm*> members;  // nullptr: has not joined, or is gone
  std::set<int> joined;
  struct Split {
    int color, key;
    FakeComm* made;
    Comm* slot;  // where NCCL stores it once it is complete
  };
  std::map<int, Split> splits;
};

// The fake machine. Thread-safe; outlives all objects made from it.
class FakeWorld {
 public:
  ~FakeWorld();
  // Return the libraries of one process.
  std::shared_ptr<NcclApi> nccl();
  std::shared_ptr<cuda::CudaApi> cuda();

  // Must be set before any object is made.
  int version = 22809;
  int devices = 8;
  bool hang_init = false;
  bool has_split = true, has_register = true;
  bool fail_register = false;
  int runtime_version = 13000;
  // Runs in each CommInitRankConfig, without locks, before the communicator exists.
  std::function<void()> on_init;

  // Makes each communicator of this rank report the error.
  void FailAsync(int rank, Result error);
  int communicators();                  // that are neither destroyed nor aborted
  std::vector<int> aborted_together();  // how many were aborted in each group of calls
  std::vector<std::string> misuse();    // calls with a communicator that is gone, and the like
  int groups();                         // ncclGroupEnd calls that issued operations
  int splits();                         // completed ncclCommSplit calls
  int registered();                     // buffers of live communicators
  int operators();                      // made by RedOpCreatePreMulSum and not destroyed
  int events_created();
  int streams();
  // Returns how often functions of CUDA have been called since the last call of this method.
  std::map<std::string, int> TakeCudaCalls();
  std::set<int> contexts();  // the devices that have a primary context

  // While set, ncclCommFinalize never completes, and ncclCommDestroy does not return.
  void HangFinalize(bool hang);
  void HangDestroy(bool hang);

  // Queues a kernel of the program on a stream (nullptr, 1 and 2 are CUDA's default streams); it runs until
  // Finish.
  std::shared_ptr<FakeKernel> QueueKernel(void* stream);
  void Finish(const std::shared_ptr<FakeKernel>& kernel);
  // As cudaStreamBeginCapture and cudaStreamEndCapture.
  void Capture(void* stream, bool capturing);
  // Makes PointerGetAttributes report this memory. All other memory is that of the current device.
  void SetMemory(const void* pointer, cuda::MemoryKind kind, int device);

 private:
  friend class FakeNccl;
  friend class FakeCuda;
  // Runs all kernels that can run.
  void RunAll() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool Run(FakeRing* ring) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  // Returns the stream of a handle. CUDA's documentation, "Stream synchronization behavior": 0 and
  // cudaStreamLegacy (1) are the legacy default stream, cudaStreamPerThread (2) the thread's own.
  FakeStream* StreamOf(void* handle) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  static bool Pending(FakeQueue* queue);
  bool RunCollective(FakeRing* ring) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  FakeComm* Find(Comm comm, const char* call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::Mutex calls_mutex_;
  std::map<std::string, int> cuda_calls_ ABSL_GUARDED_BY(calls_mutex_);
  absl::Mutex mutex_;
  int next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<int, std::shared_ptr<FakeRing>> rings_ ABSL_GUARDED_BY(mutex_);
  std::set<FakeComm*> live_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<FakeComm>> all_ ABSL_GUARDED_BY(mutex_);
  std::vector<int> aborted_together_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> misuse_ ABSL_GUARDED_BY(mutex_);
  int groups_ ABSL_GUARDED_BY(mutex_) = 0;
  int splits_ ABSL_GUARDED_BY(mutex_) = 0;
  int operators_ ABSL_GUARDED_BY(mutex_) = 0;
  int events_created_ ABSL_GUARDED_BY(mutex_) = 0;
  bool hang_finalize_ ABSL_GUARDED_BY(mutex_) = false;
  bool hang_destroy_ ABSL_GUARDED_BY(mutex_) = false;
  std::set<int> contexts_ ABSL_GUARDED_BY(mutex_);
  std::set<FakeStream*> streams_ ABSL_GUARDED_BY(mutex_);
  FakeStream legacy_ ABSL_GUARDED_BY(mutex_), per_thread_ ABSL_GUARDED_BY(mutex_);
  std::map<const void*, std::pair<cuda::MemoryKind, int>> memory_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::collectives::nccl

#endif  // TANDEM_TESTS_COLLECTIVES_BACKENDS_NCCL_FAKE_NCCL_H_

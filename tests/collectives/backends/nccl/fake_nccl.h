// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_COLLECTIVES_BACKENDS_NCCL_FAKE_NCCL_H_
#define TANDEM_TESTS_COLLECTIVES_BACKENDS_NCCL_FAKE_NCCL_H_

// NCCL and CUDA in this process. Ranks are threads and device memory is host memory. A "kernel" has run when
// all ranks that it needs have issued theirs. It computes real results, and fails if the test says so.

#include <deque>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "collectives/backends/nccl/cuda_api.h"
#include "collectives/backends/nccl/nccl_api.h"

namespace tandem::collectives::nccl {

struct FakeKernel {
  int parts = 0;  // calls that have not run
};
struct FakeStream {
  std::vector<std::shared_ptr<FakeKernel>> queued;  // what later work waits for
};
using FakeEvent = FakeStream;

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
};
struct FakeComm {
  std::shared_ptr<FakeRing> ring;
  int rank = 0;
  Result async_error = Result::kSuccess;
  bool splitting = false;
  std::map<int, double> factors;  // by number of a made RedOp
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
  };
  std::map<int, Split> splits;
};

// The fake machine. Thread-safe; outlives all objects made from it.
class FakeWorld {
 public:
  ~FakeWorld();
  // Return the libraries of one process.
  std::shared_ptr<NcclApi> nccl();
  std::shared_ptr<CudaApi> cuda();

  // Must be set before any object is made.
  int version = 22809;
  int devices = 8;
  bool hang_init = false;
  bool has_split = true;

  // Makes each communicator of this rank report the error.
  void FailAsync(int rank, Result error);
  int communicators();                  // that are neither destroyed nor aborted
  std::vector<int> aborted_together();  // how many were aborted in each group of calls
  std::vector<std::string> misuse();    // calls with a communicator that is gone, and the like

 private:
  friend class FakeNccl;
  friend class FakeCuda;
  void Run(FakeRing* ring) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  bool RunCollective(FakeRing* ring) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  FakeComm* Find(Comm comm, const char* call) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);

  absl::Mutex mutex_;
  int next_id_ ABSL_GUARDED_BY(mutex_) = 1;
  std::map<int, std::shared_ptr<FakeRing>> rings_ ABSL_GUARDED_BY(mutex_);
  std::set<FakeComm*> live_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<FakeComm>> all_ ABSL_GUARDED_BY(mutex_);
  std::vector<int> aborted_together_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::string> misuse_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::collectives::nccl

#endif  // TANDEM_TESTS_COLLECTIVES_BACKENDS_NCCL_FAKE_NCCL_H_

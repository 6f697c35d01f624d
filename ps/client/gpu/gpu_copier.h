// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_CLIENT_GPU_GPU_COPIER_H_
#define TANDEM_PS_CLIENT_GPU_GPU_COPIER_H_

// Copies the rows of pulls to GPUs, and the gradients of pushes from GPUs, through pinned memory.
//
// A call has host memory for each of its arrays on GPUs: a region of the pinned memory, or ordinary memory if
// no region is free. The client reads and writes only this host memory. Regions are copied as they are; the
// contents of ordinary memory go through pieces of pinned memory. Each call uses copy streams of its own, so
// that a program's stream which runs late delays only the calls that name it.

#include <array>
#include <atomic>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/functional/any_invocable.h"
#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/buffer_pool.h"
#include "base/cuda/cuda_api.h"
#include "ps/client/gpu/pinned_memory.h"

namespace tandem::ps {

// An array of one call in the memory of a GPU.
struct GpuArray {
  int gpu = 0;
  void* memory = nullptr;
  size_t bytes = 0;
  // The program's stream (cudaStream_t). Null: CUDA's legacy default stream. cudaStreamPerThread: the default
  // stream of the thread that calls Stage or Fetch.
  void* stream = nullptr;
  // True: the end of a copy to the GPU is ordered in `stream`. False: it is awaited, as always for
  // cudaStreamPerThread, which other threads cannot name.
  bool ordered = false;
  std::string name;  // for messages: "the rows of table 'user'"
};

// Thread-safe.
class GpuCopier {
 public:
  static constexpr uint64_t kMinPinnedBytes = uint64_t{64} << 10, kMaxPinnedBytes = uint64_t{16} << 30;

  struct Options {
    // The pinned memory for pulls, and as much again for pushes; rounded up to a multiple of 4 KiB.
    uint64_t pinned_bytes = uint64_t{64} << 20;
    // Called about every 100 ms by a thread that waits in Fetch. If it returns false, Fetch ends with
    // Cancelled. Null: only the deadline ends the wait.
    std::function<bool()> go_on_waiting;
    // Null: the first call loads the CUDA runtime of this machine.
    std::shared_ptr<cuda::CudaApi> cuda;
  };
  explicit GpuCopier(Options options);
  // Blocks until the pulls that Finish was called for have ended, which they do at their deadlines, and then
  // for at most 5 s until the GPUs have carried out all copies. Pinned memory that a GPU still uses then is
  // not freed. To free the rest, CUDA may wait for all work that the program has queued on the GPUs, which
  // has no limit.
  ~GpuCopier();

  // The arrays of one pull, and the host memory that stands for them. Has one owner, and must be destroyed
  // before the copier.
  class Rows;
  // Prepares a pull. Copies to an array will begin after all work that its stream has now. Does not block,
  // except that the first call loads CUDA's runtime and allocates the pinned memory.
  //
  // InvalidArgument: there is no such GPU, an array is not in its memory, or a stream is a stream of another
  // GPU. FailedPrecondition: there is no CUDA runtime, or a stream is being captured into a CUDA graph.
  // ResourceExhausted: the pinned memory cannot be allocated. Internal: another call of CUDA fails. After an
  // error nothing is held.
  absl::StatusOr<std::shared_ptr<Rows>> Stage(std::vector<GpuArray> arrays);
  // Returns the host memory of array `i`.
  static char* HostMemory(const Rows& rows, size_t i);

  // Copies the host memory of all arrays to the GPUs. Does not block. Runs `done` once, on the copier's
  // thread, so it must not block: when the streams of arrays with `ordered` wait for the copies, and the
  // copies to all other arrays have ended. DeadlineExceeded: the streams, or the GPU, did not get to it by
  // `deadline`. Internal: a call of CUDA fails. After an error copies may still be under way; later work of
  // their arrays' streams waits for them, unless the stream is being captured then.
  void Finish(std::shared_ptr<Rows> rows, absl::Time deadline,
              absl::AnyInvocable<void(absl::Status) &&> done);

  // Copies arrays to host memory: [array]. The copies begin after all work that the arrays' streams have now.
  // Blocks until they have ended. Errors: those of Stage; DeadlineExceeded at `deadline`, and Cancelled as
  // Options::go_on_waiting says. A copy that is still under way then reads its array later, which is
  // harmless.
  absl::StatusOr<std::vector<std::shared_ptr<char>>> Fetch(std::vector<GpuArray> arrays, absl::Time deadline);

 private:
  struct Piece;
  struct CopyStream;
  struct Group;
  enum class Direction { kToGpu, kFromGpu };

  absl::StatusOr<std::shared_ptr<cuda::CudaApi>> Cuda();
  absl::StatusOr<PinnedMemory*> Pinned(Direction direction, int gpu);
  absl::Status CheckArray(const GpuArray& array) const;
  // Returns arrays in host memory, and streams that wait for the arrays' streams.
  absl::StatusOr<std::shared_ptr<Rows>> StageFor(Direction direction, std::vector<GpuArray> arrays);
  // Returns a stream of the GPU which no call uses.
  absl::StatusOr<std::unique_ptr<CopyStream>> TakeStream(int gpu);
  // Takes a stream back, with the pinned memory that its copies may still use. If `waiting` is not null, the
  // later work of the program's stream *waiting waits for these copies.
  void ReturnStream(std::unique_ptr<CopyStream> stream, void* const* waiting);
  // Frees the pinned memory of copies that have ended.
  void Reclaim() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_);
  void Free(CopyStream* stream);
  // Starts the copies that can be started now. Returns whether it has started, or found ended, any.
  absl::StatusOr<bool> Advance(Direction direction, Rows* rows);
  absl::StatusOr<bool> AdvanceGroup(Direction direction, PinnedMemory* pinned, Rows* rows, Group* group);
  absl::StatusOr<bool> CopyPieces(Direction direction, PinnedMemory* pinned, Rows* rows, size_t array,
                                  Group* group);
  absl::Status Late(const Rows& rows) const;
  absl::Status Error(const char* call, const std::string& name, int gpu, int error) const;
  void Run();

  struct Job {
    std::shared_ptr<Rows> rows;
    absl::Time deadline;
    absl::AnyInvocable<void(absl::Status) &&> done;
  };

  const Options options_;
  BufferPool buffers_;
  absl::Mutex setup_mutex_;  // held while CUDA is loaded and memory is pinned; acquired before mutex_
  std::atomic<cuda::CudaApi*> cuda_{nullptr};
  std::shared_ptr<cuda::CudaApi> owned_cuda_ ABSL_GUARDED_BY(setup_mutex_);
  int num_gpus_ = 0;                                                                   // written before cuda_
  std::array<std::unique_ptr<PinnedMemory>, 2> pinned_ ABSL_GUARDED_BY(setup_mutex_);  // [Direction]
  absl::Mutex mutex_;
  std::vector<std::unique_ptr<CopyStream>> idle_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::unique_ptr<CopyStream>> busy_
      ABSL_GUARDED_BY(mutex_);  // copies of ended calls may still run
  // A call of CUDA failed, so that nothing tells when their copies end. They keep their pinned memory.
  std::vector<std::unique_ptr<CopyStream>> broken_ ABSL_GUARDED_BY(mutex_);
  std::vector<Job> new_jobs_ ABSL_GUARDED_BY(mutex_);
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  std::thread thread_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_CLIENT_GPU_GPU_COPIER_H_

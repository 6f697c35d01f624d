// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_CLIENT_GPU_PINNED_MEMORY_H_
#define TANDEM_PS_CLIENT_GPU_PINNED_MEMORY_H_

// Pinned host memory through which rows and gradients travel to and from GPUs. Only copies between a GPU and
// pinned memory are asynchronous.

#include <cstddef>
#include <map>
#include <memory>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/status/statusor.h"
#include "absl/synchronization/mutex.h"
#include "base/cuda/cuda_api.h"

namespace tandem::ps {

// A fixed amount of pinned memory. One half serves as regions, which calls hold as long as they need them.
// The other half serves as pieces, which are only held for the duration of a copy. Pieces therefore become
// free again whatever the calls that hold regions wait for. Thread-safe. Regions and pieces may outlive the
// object; the memory is then freed when the last of them is dropped. That may block until the GPUs have
// carried out all work that the process has queued on them (cudaFreeHost).
class PinnedMemory {
 public:
  static constexpr size_t kPieces = 4;

  // Allocates `bytes`, which must be a multiple of 2 * kPieces * 64, in the context of GPU `gpu`; the memory
  // is pinned for all GPUs. ResourceExhausted if CUDA refuses.
  static absl::StatusOr<std::unique_ptr<PinnedMemory>> Allocate(std::shared_ptr<cuda::CudaApi> cuda, int gpu,
                                                                size_t bytes);

  // Returns contiguous memory of at least `bytes`, 64-byte aligned; null if there is no room now. It becomes
  // free again when the last copy of the pointer is dropped, on any thread.
  std::shared_ptr<char> TryTakeRegion(size_t bytes);
  // Returns piece_bytes() bytes; null if all pieces are in use. Becomes free again in the same way.
  std::shared_ptr<char> TryTakePiece();
  size_t piece_bytes() const { return state_->piece_bytes; }

 private:
  struct State {
    ~State();
    void ReturnRegion(size_t offset, size_t bytes);

    std::shared_ptr<cuda::CudaApi> cuda;
    int gpu = 0;
    char* memory = nullptr;
    size_t piece_bytes = 0;
    absl::Mutex mutex;
    std::map<size_t, size_t> free_regions ABSL_GUARDED_BY(mutex);  // offset: bytes; no two are adjacent
    std::vector<char*> free_pieces ABSL_GUARDED_BY(mutex);
  };
  explicit PinnedMemory(std::shared_ptr<State> state) : state_(std::move(state)) {}

  const std::shared_ptr<State> state_;
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_CLIENT_GPU_PINNED_MEMORY_H_

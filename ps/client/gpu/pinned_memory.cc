// SPDX-License-Identifier: Apache-2.0
#include "ps/client/gpu/pinned_memory.h"

#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/cuda/device_scope.h"

namespace tandem::ps {
namespace {

constexpr size_t kAlignment = 64;

}  // namespace

absl::StatusOr<std::unique_ptr<PinnedMemory>> PinnedMemory::Allocate(std::shared_ptr<cuda::CudaApi> cuda,
                                                                     int gpu, size_t bytes) {
  const cuda::DeviceScope on_gpu(cuda.get(), gpu);
  void* memory = nullptr;
  if (const int error = cuda->HostAlloc(&memory, bytes); error != cuda::kCudaSuccess) {
    cuda->GetLastError();
    return absl::ResourceExhaustedError(absl::StrCat(
        "cudaHostAlloc of ", bytes, " bytes of pinned memory: CUDA: ", cuda->GetErrorString(error)));
  }
  auto state = std::make_shared<State>();
  state->cuda = std::move(cuda);
  state->gpu = gpu;
  state->memory = static_cast<char*>(memory);
  state->piece_bytes = bytes / 2 / kPieces;
  absl::MutexLock lock(&state->mutex);
  state->free_regions[0] = bytes / 2;
  for (size_t i = 0; i < kPieces; ++i) {
    state->free_pieces.push_back(state->memory + bytes / 2 + i * state->piece_bytes);
  }
  return std::unique_ptr<PinnedMemory>(new PinnedMemory(state));
}

PinnedMemory::State::~State() {
  const cuda::DeviceScope on_gpu(cuda.get(), gpu);
  cuda->FreeHost(memory);
}

std::shared_ptr<char> PinnedMemory::TryTakeRegion(size_t bytes) {
  bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  absl::MutexLock lock(&state_->mutex);
  for (auto it = state_->free_regions.begin(); it != state_->free_regions.end(); ++it) {
    if (it->second < bytes) continue;
    const size_t offset = it->first, left = it->second - bytes;
    state_->free_regions.erase(it);
    if (left > 0) state_->free_regions[offset + bytes] = left;
    return {state_->memory + offset,
            [state = state_, offset, bytes](char*) { state->ReturnRegion(offset, bytes); }};
  }
  return nullptr;
}

void PinnedMemory::State::ReturnRegion(size_t offset, size_t bytes) {
  absl::MutexLock lock(&mutex);
  auto it = free_regions.emplace(offset, bytes).first;
  if (const auto next = std::next(it); next != free_regions.end() && it->first + it->second == next->first) {
    it->second += next->second;
    free_regions.erase(next);
  }
  if (it == free_regions.begin()) return;
  if (const auto before = std::prev(it); before->first + before->second == it->first) {
    before->second += it->second;
    free_regions.erase(it);
  }
}

std::shared_ptr<char> PinnedMemory::TryTakePiece() {
  absl::MutexLock lock(&state_->mutex);
  if (state_->free_pieces.empty()) return nullptr;
  char* const piece = state_->free_pieces.back();
  state_->free_pieces.pop_back();
  return {piece, [state = state_](char* returned) {
            absl::MutexLock lock(&state->mutex);
            state->free_pieces.push_back(returned);
          }};
}

}  // namespace tandem::ps

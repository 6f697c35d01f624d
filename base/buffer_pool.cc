// SPDX-License-Identifier: Apache-2.0
#include "base/buffer_pool.h"

#include <algorithm>
#include <new>

#include "absl/numeric/bits.h"

namespace tandem {
namespace {
constexpr std::align_val_t kAlignment{64};
constexpr size_t kSmallest = 4096;
char* Allocate(size_t capacity) { return static_cast<char*>(::operator new(capacity, kAlignment)); }
void Free(char* data) { ::operator delete(data, kAlignment); }
}  // namespace

BufferPool::State::~State() {
  for (const std::vector<char*>& buffers : idle) {
    for (char* const buffer : buffers) Free(buffer);
  }
}

std::shared_ptr<char> BufferPool::Get(size_t size) {
  // Powers of two, so that buffers of similar messages are interchangeable.
  const size_t wanted = absl::bit_ceil(std::max(size, kSmallest));
  const size_t place = absl::bit_width(wanted) - 1;
  char* buffer = nullptr;
  {
    absl::MutexLock lock(&state_->mutex);
    std::vector<char*>& idle = state_->idle[place];
    if (!idle.empty()) {
      buffer = idle.back();
      idle.pop_back();
      state_->idle_bytes -= wanted;
    }
  }
  if (buffer == nullptr) buffer = Allocate(wanted);
  return std::shared_ptr<char>(buffer, [state = state_, place](char* data) {
    const size_t capacity = size_t{1} << place;
    {
      absl::MutexLock lock(&state->mutex);
      if (state->idle_bytes + capacity <= state->max_idle_bytes) {
        state->idle[place].push_back(data);
        state->idle_bytes += capacity;
        return;
      }
    }
    Free(data);
  });
}

}  // namespace tandem

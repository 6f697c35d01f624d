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
  for (const Buffer& buffer : idle) Free(buffer.data);
}

std::shared_ptr<char> BufferPool::Get(size_t size) {
  // Powers of two, so that buffers of similar messages are interchangeable.
  const size_t wanted = absl::bit_ceil(std::max(size, kSmallest));
  Buffer buffer{nullptr, wanted};
  {
    absl::MutexLock lock(&state_->mutex);
    for (size_t i = state_->idle.size(); i-- > 0;) {
      if (state_->idle[i].capacity != wanted) continue;
      buffer = state_->idle[i];
      state_->idle.erase(state_->idle.begin() + i);
      state_->idle_bytes -= wanted;
      break;
    }
  }
  if (buffer.data == nullptr) buffer.data = Allocate(wanted);
  return std::shared_ptr<char>(buffer.data, [state = state_, buffer](char*) {
    {
      absl::MutexLock lock(&state->mutex);
      if (state->idle_bytes + buffer.capacity <= state->max_idle_bytes) {
        state->idle.push_back(buffer);
        state->idle_bytes += buffer.capacity;
        return;
      }
    }
    Free(buffer.data);
  });
}

}  // namespace tandem

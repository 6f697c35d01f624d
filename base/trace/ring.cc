// SPDX-License-Identifier: Apache-2.0
#include "base/trace/ring.h"

#include <sys/mman.h>

#include <algorithm>
#include <new>
#include <utility>

#include "base/status.h"

namespace tandem::trace {

Ring::Ring(size_t events, int64_t thread_id, std::string thread_name)
    : events_(events), thread_id_(thread_id), thread_name_(std::move(thread_name)) {
  TANDEM_CHECK(events > 0 && (events & (events - 1)) == 0);
  static_assert(sizeof(std::atomic<uint64_t>) == sizeof(uint64_t) &&
                std::atomic<uint64_t>::is_always_lock_free);
  // Zero pages that take no memory until they are written.
  void* const memory = ::mmap(nullptr, events * kWords * sizeof(uint64_t), PROT_READ | PROT_WRITE,
                              MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) throw std::bad_alloc();
  words_ = static_cast<std::atomic<uint64_t>*>(memory);
}

Ring::~Ring() { ::munmap(words_, events_ * kWords * sizeof(uint64_t)); }

std::vector<RawEvent> Ring::Read(uint64_t from, size_t limit, uint64_t* lost) const {
  const uint64_t end = count();
  uint64_t begin = std::max(from, end > events_ ? end - events_ : 0);
  begin = std::max(begin, end > limit ? end - limit : 0);
  std::vector<RawEvent> events;
  events.reserve(end - std::min(begin, end));
  for (uint64_t i = begin; i < end; ++i) {
    const std::atomic<uint64_t>* const words = words_ + (i & (events_ - 1)) * kWords;
    RawEvent event;
    // Acquire, so that the second read of the count is not moved before these loads.
    event.kind = reinterpret_cast<const Kind*>(words[0].load(std::memory_order_acquire));
    event.begin = words[1].load(std::memory_order_acquire);
    event.end = words[2].load(std::memory_order_acquire);
    event.flow = words[3].load(std::memory_order_acquire);
    event.flow_end = words[4].load(std::memory_order_acquire);
    for (size_t w = 0; w < 3; ++w) {
      event.arguments[w] = static_cast<int64_t>(words[5 + w].load(std::memory_order_acquire));
    }
    events.push_back(event);
  }
  // The thread may have added events in the meantime. Its next event, perhaps half written, replaces the one
  // that is exactly a ring's length older.
  const uint64_t now = count();
  const uint64_t sound = now + 1 > events_ ? now + 1 - events_ : 0;
  if (sound > begin) {
    events.erase(events.begin(), events.begin() + static_cast<ptrdiff_t>(std::min(sound, end) - begin));
    begin = std::min(sound, end);
  }
  *lost = begin > from ? begin - from : 0;
  return events;
}

}  // namespace tandem::trace

// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_BASE_TRACE_RING_H_
#define TANDEM_BASE_TRACE_RING_H_

// Stores the latest events of one thread. The thread writes without locks and without waiting. A reader
// copies the events and discards those that may have been overwritten meanwhile.

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

namespace tandem::trace {

struct Kind;

// An event as stored in the ring: one cache line.
struct RawEvent {
  const Kind* kind = nullptr;
  uint64_t begin = 0, end = 0;  // ticks
  uint64_t flow = 0;
  uint64_t flow_end = 0;  // Flow::End
  std::array<int64_t, 3> arguments{};
};

// The latest events of one thread.
class Ring {
 public:
  // `events` is a power of two. The kernel commits the memory as it is written.
  Ring(size_t events, int64_t thread_id, std::string thread_name);
  ~Ring();
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  // Adds an event, in place of the oldest one if the ring is full. Only the owning thread may call this.
  void Put(const RawEvent& event) {
    const uint64_t count = count_.load(std::memory_order_relaxed);
    std::atomic<uint64_t>* const words = words_ + (count & (events_ - 1)) * kWords;
    // Release: a reader that sees one of these words also sees that exactly `count` events were complete
    // before.
    words[0].store(reinterpret_cast<uintptr_t>(event.kind), std::memory_order_release);
    words[1].store(event.begin, std::memory_order_release);
    words[2].store(event.end, std::memory_order_release);
    words[3].store(event.flow, std::memory_order_release);
    words[4].store(event.flow_end, std::memory_order_release);
    for (size_t i = 0; i < 3; ++i) {
      words[5 + i].store(static_cast<uint64_t>(event.arguments[i]), std::memory_order_release);
    }
    count_.store(count + 1, std::memory_order_release);
  }

  // Returns the events from number `from` on that are still in the ring, oldest first, and of these at most
  // the newest `limit`. Sets *lost to the number of events from `from` on that are not returned. May be
  // called on any thread at any time.
  std::vector<RawEvent> Read(uint64_t from, size_t limit, uint64_t* lost) const;

  // Returns the number of events added so far.
  uint64_t count() const { return count_.load(std::memory_order_acquire); }
  int64_t thread_id() const { return thread_id_; }
  const std::string& thread_name() const { return thread_name_; }

  // Marks that the thread has ended and will add no more events.
  void Retire() { retired_.store(true, std::memory_order_release); }
  bool retired() const { return retired_.load(std::memory_order_acquire); }

 private:
  static constexpr size_t kWords = 8;

  const size_t events_;
  const int64_t thread_id_;
  const std::string thread_name_;
  std::atomic<uint64_t>* words_;
  std::atomic<uint64_t> count_{0};
  std::atomic<bool> retired_{false};
};

}  // namespace tandem::trace

#endif  // TANDEM_BASE_TRACE_RING_H_

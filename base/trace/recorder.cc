// SPDX-License-Identifier: Apache-2.0
#include "base/trace/recorder.h"

#include <pthread.h>
#include <unistd.h>

#include <algorithm>
#include <utility>

namespace tandem::trace {
namespace {

constexpr size_t kMaxNames = 4096;
constexpr Kind kOther{"other", "other", {}, /*may_overlap=*/true};

// The number of recorders created so far. It gives each recorder a unique id.
std::atomic<uint64_t> recorders{0};

std::string OwnThreadName() {
  char name[16] = {};
  ::pthread_getname_np(::pthread_self(), name, sizeof(name));
  return name;
}

}  // namespace

// A thread's reference to its ring.
struct Recorder::Local {
  uint64_t recorder = 0;
  std::shared_ptr<Ring> ring;
  // The names that this thread has interned. A map per thread needs no lock.
  Names interned;

  ~Local() { Leave(); }
  void Leave() {
    if (ring != nullptr) ring->Retire();
    ring = nullptr;
    interned.clear();
  }
  static Local& OfThread() {
    static thread_local Local local;
    return local;
  }
};

Recorder::Recorder(const Options& options)
    : options_(options), id_(recorders.fetch_add(1, std::memory_order_relaxed) + 1) {}

Recorder::~Recorder() { Stop(); }

absl::Status Recorder::Start() {
  absl::MutexLock lock(&mutex_);
  const auto busy = [] {
    return absl::FailedPreconditionError("this process is being traced already; try again when that is over");
  };
  if (internal::active.load(std::memory_order_acquire) != nullptr) return busy();
  slots_.erase(
      std::remove_if(slots_.begin(), slots_.end(), [](const Slot& slot) { return slot.ring->retired(); }),
      slots_.end());
  for (Slot& slot : slots_) slot.from = slot.ring->count();
  unplaced_.store(0, std::memory_order_relaxed);
  from_ = clock_.Now();
  to_ = 0;
  Recorder* nobody = nullptr;
  return internal::active.compare_exchange_strong(nobody, this, std::memory_order_acq_rel) ? absl::OkStatus()
                                                                                           : busy();
}

void Recorder::Stop() {
  absl::MutexLock lock(&mutex_);
  Recorder* self = this;
  if (internal::active.compare_exchange_strong(self, nullptr, std::memory_order_acq_rel)) to_ = clock_.Now();
}

void Recorder::Put(const RawEvent& event) {
  Local& local = Local::OfThread();
  if (ABSL_PREDICT_FALSE(local.recorder != id_)) {
    local.Leave();
    local.ring = AddThread();
    // Without a ring, the next event tries again: another thread may have ended in the meantime.
    local.recorder = local.ring == nullptr ? 0 : id_;
    if (local.ring == nullptr) return;
  }
  local.ring->Put(event);
}

std::shared_ptr<Ring> Recorder::AddThread() {
  absl::MutexLock lock(&mutex_);
  if (slots_.size() >= options_.max_threads) {
    unplaced_.fetch_add(1, std::memory_order_relaxed);
    return nullptr;
  }
  auto ring = std::make_shared<Ring>(options_.events_per_thread, ::gettid(), OwnThreadName());
  slots_.push_back({ring, 0});
  return ring;
}

Recording Recorder::Collect(size_t max_events) {
  Recording recording;
  absl::MutexLock lock(&mutex_);
  const TickClock::Calibration time(clock_);
  recording.from_ns = time.SteadyNanosecondsAt(from_);
  recording.to_ns = time.SteadyNanosecondsAt(to_ == 0 ? clock_.Now() : to_);
  recording.unplaced = unplaced_.load(std::memory_order_relaxed);
  // Threads with few events leave the rest of their share to the others.
  std::vector<const Slot*> by_size;
  for (const Slot& slot : slots_) by_size.push_back(&slot);
  const auto size = [this](const Slot* slot) {
    return std::min<uint64_t>(slot->ring->count() - slot->from, options_.events_per_thread);
  };
  std::sort(by_size.begin(), by_size.end(), [&](const Slot* a, const Slot* b) { return size(a) < size(b); });
  size_t left = max_events, threads = by_size.size();
  for (const Slot* slot : by_size) {
    ThreadEvents thread{.id = slot->ring->thread_id(), .name = slot->ring->thread_name()};
    const std::vector<RawEvent> raw = slot->ring->Read(slot->from, left / threads--, &thread.lost);
    left -= std::min(left, raw.size());
    for (const RawEvent& event : raw) {
      if (event.begin < from_) continue;  // begun before this recording
      Event out;
      out.kind = event.kind;
      out.begin_ns = time.SteadyNanosecondsAt(event.begin);
      // The counters of two processors may differ slightly.
      out.end_ns = std::max(out.begin_ns, time.SteadyNanosecondsAt(event.end));
      out.flow = {event.flow, static_cast<Flow::End>(event.flow_end)};
      out.arguments = event.arguments;
      thread.events.push_back(out);
    }
    if (!thread.events.empty() || thread.lost > 0) recording.threads.push_back(std::move(thread));
  }
  return recording;
}

const Kind& Recorder::Intern(absl::string_view name, const char* category, const char* argument) {
  Local& local = Local::OfThread();
  const bool mine = local.recorder == id_;
  if (mine) {
    const auto& known = local.interned[category];
    const auto found = known.find(name);
    if (found != known.end()) return *found->second;
  }
  absl::MutexLock lock(&mutex_);
  const auto [it, added] = interned_[category].try_emplace(std::string(name), &kOther);
  if (added && kinds_.size() < kMaxNames) {
    names_.emplace_back(name);
    it->second =
        &kinds_.emplace_back(Kind{names_.back().c_str(), category, {argument}, /*may_overlap=*/true});
  } else if (added) {
    interned_[category].erase(it);
    return kOther;
  }
  if (mine) local.interned[category].emplace(std::string(name), it->second);
  return *it->second;
}

}  // namespace tandem::trace

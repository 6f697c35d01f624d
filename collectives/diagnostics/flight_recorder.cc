// SPDX-License-Identifier: Apache-2.0
#include "collectives/diagnostics/flight_recorder.h"

#include <algorithm>
#include <cstdlib>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "base/logging.h"
#include "collectives/diagnostics/recorder_entry.h"

namespace tandem::collectives {
namespace {

constexpr size_t kMaxEntries = 1 << 20;

template <typename PartType>
uint64_t BytesOf(absl::Span<const PartType> parts, bool even, size_t element) {
  if (parts.empty()) return 0;
  if (even) return parts.size() * parts[0].count * element;
  uint64_t count = 0;
  for (const PartType& part : parts) count += part.count;
  return count * element;
}

}  // namespace

FlightRecorder::Options FlightRecorder::OptionsFromEnv(int rank) {
  Options options;
  options.rank = rank;
  if (const char* directory = std::getenv("TANDEM_TRACE_DIR")) options.directory = directory;
  if (const char* text = std::getenv("TANDEM_TRACE_ENTRIES"); text != nullptr && *text != '\0') {
    uint64_t entries = 0;
    if (absl::SimpleAtoi(text, &entries) && entries <= kMaxEntries) {
      options.entries = entries;
    } else {
      LogWarning(absl::StrCat("TANDEM_TRACE_ENTRIES='", text, "' is not a number from 0 to ", kMaxEntries,
                              "; the last ", options.entries, " operations are kept"));
    }
  }
  return options;
}

FlightRecorder::FlightRecorder(const Options& options)
    : options_(options),
      ring_(options.entries > 0 ? std::make_unique<Entry[]>(options.entries) : nullptr),
      progress_(std::make_unique<Progress[]>(kGroupsWithProgress)) {}

FlightRecorder::~FlightRecorder() = default;

uint32_t FlightRecorder::AddGroup(absl::string_view name, absl::string_view backend, int rank,
                                  absl::Span<const int> global_ranks) {
  Group group;
  group.name = std::string(name);
  group.backend = std::string(backend);
  group.rank = rank;
  group.global_ranks.assign(global_ranks.begin(), global_ranks.end());
  group.used = true;

  absl::MutexLock lock(&mutex_);
  const auto closed = [](const Group& g) { return g.used && g.closed; };
  if (std::any_of(groups_.begin(), groups_.end(), closed)) {
    std::vector<bool> held(groups_.size());
    for (const Record& record : Records()) {
      if (record.group < held.size()) held[record.group] = true;
    }
    for (size_t i = 0; i < groups_.size(); ++i) {
      if (closed(groups_[i]) && !held[i]) groups_[i] = Group{};
    }
  }
  size_t number = 0;
  while (number < groups_.size() && groups_[number].used) ++number;
  if (number == groups_.size()) groups_.emplace_back();
  groups_[number] = std::move(group);
  if (number < kGroupsWithProgress) progress_[number].Reset();
  return static_cast<uint32_t>(number);
}

void FlightRecorder::RemoveGroup(uint32_t group) {
  absl::MutexLock lock(&mutex_);
  if (group < groups_.size()) groups_[group].closed = true;
}

FlightRecorder::Entry& FlightRecorder::At(uint64_t id) const { return ring_[id % options_.entries]; }

uint64_t FlightRecorder::Begin(uint32_t group, const Operation& operation) {
  return Claim(group, operation, /*started=*/false);
}

uint64_t FlightRecorder::BeginStarted(uint32_t group, const Operation& operation) {
  return Claim(group, operation, /*started=*/true);
}

uint64_t FlightRecorder::Claim(uint32_t group, const Operation& o, bool started) {
  const size_t entries = options_.entries;
  // An entry is skipped while its operation is in flight. Not all entries are tried: a thread that comes when
  // thousands are in flight should not inspect them all.
  const size_t tries = std::min<size_t>(entries, 64);
  for (size_t attempt = 0; attempt < tries; ++attempt) {
    const uint64_t id = next_.fetch_add(1, std::memory_order_relaxed);
    Entry& entry = ring_[id % entries];
    uint64_t old = entry.stamp.load(std::memory_order_relaxed);
    // The entry is newer: this thread was delayed between the two lines above for a whole round of the ring.
    if (IsInFlight(PhaseOf(old)) || IdOf(old) > id) continue;
    if (!entry.stamp.compare_exchange_strong(old, Stamp(id, Phase::kWriting), std::memory_order_acquire,
                                             std::memory_order_relaxed)) {
      continue;
    }
    const Fingerprint f = FingerprintOf(o);
    const uint64_t element = SizeOf(o.dtype);
    const uint64_t now = clock_.Now();
    entry.Set(kGroupAndRoot, Pack(group, static_cast<uint32_t>(f.root)));
    // The fingerprint's fields, in which irrelevant ones are zero, so that ranks can be compared.
    entry.Set(kKinds, Pack(static_cast<uint32_t>(f.kind) | static_cast<uint32_t>(f.dtype) << 8 |
                               static_cast<uint32_t>(f.reduce) << 16 | static_cast<uint32_t>(f.even) << 24 |
                               static_cast<uint32_t>(o.device.kind) << 25,
                           o.tag));
    entry.Set(kSequence, o.sequence);
    entry.Set(kCount, f.count);
    entry.Set(kPartsHash, f.parts_hash);
    entry.Set(kBytesIn, o.ins.empty() ? o.in.count * element : BytesOf(o.ins, o.even, element));
    entry.Set(kBytesOut, o.outs.empty() ? o.out.count * element : BytesOf(o.outs, o.even, element));
    entry.Set(kTimeout, static_cast<uint64_t>(absl::ToInt64Nanoseconds(o.timeout)));
    entry.Set(kIssued, now);
    entry.Set(kStarted, started ? now : 0);
    entry.Set(kEnded, 0);
    entry.stamp.store(Stamp(id, started ? Phase::kStarted : Phase::kQueued), std::memory_order_release);
    if (group < kGroupsWithProgress) progress_[group].Issued(o);
    At(id + 1).Prefetch();  // the ring is larger than the first-level cache
    return id;
  }
  not_recorded_.fetch_add(1, std::memory_order_relaxed);
  return 0;
}

void FlightRecorder::Start(uint64_t id) {
  if (id == 0) return;
  Entry& entry = At(id);
  if (entry.stamp.load(std::memory_order_relaxed) != Stamp(id, Phase::kQueued)) return;
  entry.Set(kStarted, clock_.Now());
  entry.stamp.store(Stamp(id, Phase::kStarted), std::memory_order_release);
}

void FlightRecorder::Requeue(uint64_t id) {
  if (id == 0) return;
  Entry& entry = At(id);
  if (entry.stamp.load(std::memory_order_relaxed) != Stamp(id, Phase::kStarted)) return;
  entry.stamp.store(Stamp(id, Phase::kQueued), std::memory_order_release);
}

void FlightRecorder::End(uint64_t id, const absl::Status& status) {
  if (id == 0) return;
  Entry& entry = At(id);
  const uint64_t stamp = entry.stamp.load(std::memory_order_relaxed);
  if (IdOf(stamp) != id || !IsInFlight(PhaseOf(stamp))) return;  // ended twice
  entry.Set(kEnded, clock_.Now());
  if (!status.ok()) {
    absl::MutexLock lock(&mutex_);
    errors_[id] = status.ToString();
    if (errors_.size() > options_.entries) errors_.erase(errors_.begin());
    entry.stamp.store(Stamp(id, Phase::kFailed), std::memory_order_release);
    return;
  }
  const uint64_t group = entry.Get(kGroupAndRoot) >> 32;
  if (group < kGroupsWithProgress) {
    progress_[group].Completed(entry.Get(kKinds), entry.Get(kSequence));
  }
  entry.stamp.store(Stamp(id, Phase::kCompleted), std::memory_order_release);
}

std::vector<FlightRecorder::Record> FlightRecorder::Records() const {
  std::vector<Record> records;
  for (size_t i = 0; i < options_.entries; ++i) {
    Record record;
    if (ring_[i].Read(&record)) records.push_back(record);
  }
  std::sort(records.begin(), records.end(), [](const Record& a, const Record& b) { return a.id < b.id; });
  return records;
}

std::string FlightRecorder::GroupName(uint32_t group) const {
  return group < groups_.size() && groups_[group].used ? groups_[group].name : absl::StrCat("#", group);
}

std::vector<FlightRecorder::InFlight> FlightRecorder::Running() const {
  std::vector<Record> records = Records();
  records.erase(
      std::remove_if(records.begin(), records.end(), [](const Record& r) { return !IsInFlight(r.phase); }),
      records.end());
  if (records.empty()) return {};
  const TickClock::Calibration time(clock_);
  std::vector<InFlight> running;
  running.reserve(records.size());
  absl::MutexLock lock(&mutex_);
  for (const Record& r : records) {
    const bool started = r.phase == Phase::kStarted;
    running.push_back({.id = r.id,
                       .group = r.group,
                       .group_name = GroupName(r.group),
                       .description = r.Description(),
                       .started = started,
                       .on_device = r.device != Device::Kind::kCpu,
                       .running = started ? time.Since(r.started) : absl::ZeroDuration(),
                       .queued = started ? time.Between(r.issued, r.started) : time.Since(r.issued),
                       .timeout = r.timeout()});
  }
  return running;
}

}  // namespace tandem::collectives

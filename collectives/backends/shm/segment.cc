// SPDX-License-Identifier: Apache-2.0
#include "collectives/backends/shm/segment.h"

#include <algorithm>
#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/synchronization/mutex.h"
#include "base/ipc/unix_socket.h"
#include "base/round_up.h"
#include "base/status.h"

namespace tandem::collectives::shm {
namespace {

constexpr size_t kPage = 4096;
constexpr size_t kMiB = 1 << 20;

// Segments that this process has mapped, by key. Weak: a group's ranks own them.
class Registry {
 public:
  void Add(const std::string& key, const std::shared_ptr<Segment>& segment) {
    absl::MutexLock lock(&mutex_);
    for (auto it = segments_.begin(); it != segments_.end();) {
      it = it->second.expired() ? segments_.erase(it) : std::next(it);
    }
    segments_[key] = segment;
  }
  std::shared_ptr<Segment> Find(absl::string_view key) {
    absl::MutexLock lock(&mutex_);
    const auto found = segments_.find(key);
    return found == segments_.end() ? nullptr : found->second.lock();
  }

 private:
  absl::Mutex mutex_;
  std::map<std::string, std::weak_ptr<Segment>, std::less<>> segments_ ABSL_GUARDED_BY(mutex_);
};

// The only state of the process: the memory that it has mapped.
Registry& ThisProcess() {
  static Registry* const registry = new Registry;
  return *registry;
}

}  // namespace

// Stages (and rings, if memory allows) are so large because of the caches. A line that the reader still holds
// in its private cache costs the writer a round trip between the cores (measured: 6 to 9 GB/s); a line that
// has gone to the shared cache does not (40 GB/s). A cyclic stage of several times the private caches' size
// makes the latter the usual case.
Geometry::Geometry(int world_size) : world_size(world_size) {
  const size_t ranks = world_size;
  stage_bytes = ranks <= 4 ? 4 * kMiB : ranks <= 16 ? 2 * kMiB : kMiB;
  block_bytes = std::min(stage_bytes / kStageParts, 256 * 1024 * std::max<size_t>(1, ranks / 2));
  block_bytes -= block_bytes % (kLine * ranks);
  ring_bytes = ranks <= 2 ? 2 * kMiB : ranks <= 4 ? kMiB / 2 : ranks <= 16 ? kMiB / 16 : kMiB / 64;
  areas_offset = RoundUp(sizeof(GroupHeader), kPage);
  controls_offset = areas_offset + ranks * sizeof(RankArea);
  rings_offset = RoundUp(controls_offset + ranks * ranks * sizeof(RingControl), kPage);
  stages_offset = RoundUp(rings_offset + ranks * ranks * ring_bytes, 2 * kMiB);
  total_bytes = stages_offset + ranks * stage_bytes;
}

absl::StatusOr<std::shared_ptr<Segment>> Segment::Create(int world_size) {
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<ipc::MemoryFile> memory,
                          ipc::MemoryFile::Create("tandem-shm", Geometry(world_size).total_bytes));
  // Fresh pages are zero, which every structure in the segment treats as its initial state.
  return std::shared_ptr<Segment>(new Segment(world_size, std::move(memory)));
}

absl::StatusOr<std::shared_ptr<Segment>> Segment::Map(ipc::Descriptor file, int world_size) {
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<ipc::MemoryFile> memory,
                          ipc::MemoryFile::Map(std::move(file), Geometry(world_size).total_bytes));
  return std::shared_ptr<Segment>(new Segment(world_size, std::move(memory)));
}

Segment::Segment(int world_size, std::unique_ptr<ipc::MemoryFile> memory)
    : geometry_(world_size), memory_(std::move(memory)), base_(memory_->data()) {
  memory_->PreferHugePages(geometry_.stages_offset, geometry_.world_size * geometry_.stage_bytes);
}

void Segment::WakeAll() {
  for (int rank = 0; rank < geometry_.world_size; ++rank) {
    WakeAlways(area(rank).wakeup);
    WakeAlways(area(rank).mailbox_wakeup);
  }
}

std::string OfferToThisProcess(const std::shared_ptr<Segment>& segment) {
  std::string key = ipc::RandomToken();
  ThisProcess().Add(key, segment);
  return key;
}

std::shared_ptr<Segment> FindInThisProcess(absl::string_view key) { return ThisProcess().Find(key); }

}  // namespace tandem::collectives::shm

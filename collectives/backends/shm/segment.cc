#include "collectives/backends/shm/segment.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/status/status.h"
#include "absl/strings/escaping.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/status.h"

namespace tandem::collectives::shm {
namespace {

static_assert(std::atomic<uint64_t>::is_always_lock_free && std::atomic<uint32_t>::is_always_lock_free,
              "words between processes must not hide a lock");

constexpr size_t kPage = 4096;
constexpr size_t kMiB = 1 << 20;
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL;

size_t RoundUp(size_t n, size_t to) { return (n + to - 1) / to * to; }

absl::Status Refused(absl::string_view what) {
  return absl::FailedPreconditionError(
      absl::StrCat("shared memory cannot be used here: ", what, " failed: ", std::strerror(errno)));
}

// Segments that this process has mapped, by key. Weak: a group's ranks own it.
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

// The one thing here that belongs to the process: which memory it has mapped.
Registry& ThisProcess() {
  static Registry* const registry = new Registry;
  return *registry;
}

}  // namespace

// Why stages, and rings where there is room, are so large: a line that the reader still holds in its private
// cache costs the writer a round trip between the cores (measured: 6 to 9 GB/s), one that has gone to the
// shared cache does not (40 GB/s). A stage of several private caches' size, used round and round, makes sure
// of the latter.
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

absl::StatusOr<std::shared_ptr<Segment>> Segment::MapFile(int fd, int world_size) {
  const Geometry geometry(world_size);
  void* base = mmap(nullptr, geometry.total_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (base == MAP_FAILED) {
    const absl::Status refused = Refused(absl::StrCat("mmap of ", geometry.total_bytes, " bytes"));
    close(fd);
    return refused;
  }
  char* const bytes = static_cast<char*>(base);
  // Huge pages where the system allows them for shared memory; not having them is no error.
  madvise(bytes + geometry.stages_offset, geometry.world_size * geometry.stage_bytes, MADV_HUGEPAGE);
  return std::shared_ptr<Segment>(new Segment(world_size, fd, bytes));
}

absl::StatusOr<std::shared_ptr<Segment>> Segment::Create(int world_size) {
  const int fd = memfd_create("tandem-shm", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (fd < 0) return Refused("memfd_create");
  if (ftruncate(fd, Geometry(world_size).total_bytes) != 0 || fcntl(fd, F_ADD_SEALS, kSeals) != 0) {
    const absl::Status refused = Refused("sizing and sealing the memory file");
    close(fd);
    return refused;
  }
  return MapFile(fd, world_size);  // fresh pages are zero, which every structure in it takes for new
}

absl::StatusOr<std::shared_ptr<Segment>> Segment::Map(int fd, int world_size) {
  struct stat status;
  if (fcntl(fd, F_GET_SEALS) != kSeals || fstat(fd, &status) != 0 ||
      static_cast<size_t>(status.st_size) != Geometry(world_size).total_bytes) {
    close(fd);
    return absl::FailedPreconditionError(
        "the memory file that rank 0 passed is not sealed or not of the expected size: do all ranks run the "
        "same version?");
  }
  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<Segment> segment, MapFile(fd, world_size));
  segment->CloseDescriptor();
  return segment;
}

Segment::~Segment() {
  CloseDescriptor();
  munmap(base_, geometry_.total_bytes);
}

void Segment::CloseDescriptor() {
  if (fd_ >= 0) close(std::exchange(fd_, -1));
}

void Segment::WakeAll() {
  for (int rank = 0; rank < geometry_.world_size; ++rank) {
    RingAlways(area(rank).bell);
    RingAlways(area(rank).mailbox_bell);
  }
}

std::string OfferToThisProcess(const std::shared_ptr<Segment>& segment) {
  std::string key = RandomToken();
  ThisProcess().Add(key, segment);
  return key;
}

std::shared_ptr<Segment> FindInThisProcess(absl::string_view key) { return ThisProcess().Find(key); }

std::string RandomToken() {
  char bytes[16];
  TANDEM_CHECK(getrandom(bytes, sizeof(bytes), 0) == sizeof(bytes));
  return absl::BytesToHexString(absl::string_view(bytes, sizeof(bytes)));
}

}  // namespace tandem::collectives::shm

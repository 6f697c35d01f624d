// SPDX-License-Identifier: Apache-2.0
#include "ps/client/gpu/gpu_copier.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "base/cuda/device_scope.h"
#include "base/cuda/load_cuda.h"
#include "base/logging.h"
#include "base/status.h"
#include "base/timed_wait.h"

namespace tandem::ps {
namespace {

using cuda::DeviceScope;
using cuda::kCudaSuccess;

// How long the destructor waits for copies of calls that have ended.
constexpr absl::Duration kLastCopies = absl::Seconds(5);
// How often Fetch asks whether to go on waiting.
constexpr absl::Duration kAskInterval = absl::Milliseconds(100);
// The thread polls without a pause for this long, which is longer than most copies take.
constexpr absl::Duration kBusyPolling = absl::Microseconds(200);

// cudaStreamPerThread: the default stream of the thread that calls CUDA.
void* PerThreadStream() { return reinterpret_cast<void*>(uintptr_t{2}); }

}  // namespace

// A piece of pinned memory that a copy uses.
struct GpuCopier::Piece {
  std::shared_ptr<char> memory;
  void* event = nullptr;  // of the CopyStream; recorded after the copy
  size_t offset = 0, bytes = 0;
  bool copying = false;
};

// A stream for the copies of one call, and its events.
struct GpuCopier::CopyStream {
  int gpu = 0;
  void* stream = nullptr;
  void* event = nullptr;
  std::array<void*, 2> piece_events{};
  // Pinned memory that copies of an ended call may still use.
  std::vector<std::shared_ptr<char>> held;
};

// The arrays of a call whose copies have the same order: they share a stream.
struct GpuCopier::Group {
  std::unique_ptr<CopyStream> stream;
  void* program_stream = nullptr;
  bool ordered = false;
  std::vector<size_t> arrays;
  size_t next = 0;              // index in `arrays` of the array that is being copied
  size_t offset = 0;            // the copies of so many of its bytes have been started
  std::array<Piece, 2> pieces;  // one is filled while the other is copied
  bool reached = false;         // the work that the program's stream had at the call has ended
  bool lacks_piece = false;     // copies of other calls use all pieces
  bool begun = false;           // a copy has been started
  bool issued = false;          // all copies have been started
  bool copied = false;          // all copies have ended
  bool ended = false;           // the call need not wait for this group
};

class GpuCopier::Rows {
 public:
  Rows(GpuCopier* owner, std::vector<GpuArray> arrays)
      : owner_(owner), arrays(std::move(arrays)), host(this->arrays.size()), pinned(this->arrays.size()) {}
  ~Rows() {
    for (Group& group : groups) {
      for (const size_t a : group.arrays) {
        if (pinned[a] && !group.copied) group.stream->held.push_back(std::move(host[a]));
      }
      for (Piece& piece : group.pieces) {
        if (piece.copying) group.stream->held.push_back(std::move(piece.memory));
      }
      // After an error, the program may use the array for something else.
      const bool pending = group.begun && !group.ended;
      // This is another thread than that of the call. Each thread's default stream waits for the legacy one.
      if (group.program_stream == PerThreadStream()) group.program_stream = nullptr;
      owner_->ReturnStream(std::move(group.stream), pending ? &group.program_stream : nullptr);
    }
  }
  bool ended() const {
    return std::all_of(groups.begin(), groups.end(), [](const Group& group) { return group.ended; });
  }

 private:
  GpuCopier* const owner_;

 public:
  const std::vector<GpuArray> arrays;
  std::vector<std::shared_ptr<char>> host;  // [array]
  std::vector<bool> pinned;                 // [array]: whether `host` is a region of pinned memory
  std::vector<Group> groups;
};

GpuCopier::GpuCopier(Options options) : options_(std::move(options)) {}

GpuCopier::~GpuCopier() {
  std::thread thread;
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
    thread = std::move(thread_);
  }
  if (thread.joinable()) thread.join();
  const absl::Time deadline = MonotonicNow() + kLastCopies;
  cuda::PollPause pause;
  absl::MutexLock lock(&mutex_);
  while (!busy_.empty()) {
    {
      const DeviceScope on_gpu(cuda_.load(), busy_.front()->gpu);
      Reclaim();
    }
    if (busy_.empty() || MonotonicNow() >= deadline) break;
    pause.Wait();
  }
  for (auto* streams : {&idle_, &broken_}) {
    for (auto& stream : *streams) Free(stream.get());
  }
  if (busy_.empty()) return;
  LogError(absl::StrCat("GPU ", busy_.front()->gpu, " has not carried out the copies of ", busy_.size(),
                        " calls; their pinned memory is not freed"));
  for (auto& stream : busy_) stream.release();
}

absl::Status GpuCopier::Error(const char* call, const std::string& name, int gpu, int error) const {
  cuda::CudaApi& cuda = *cuda_.load();
  cuda.GetLastError();
  return absl::InternalError(
      absl::StrCat(call, " for ", name, " on GPU ", gpu, ": CUDA: ", cuda.GetErrorString(error)));
}

absl::StatusOr<std::shared_ptr<cuda::CudaApi>> GpuCopier::Cuda() {
  absl::MutexLock lock(&setup_mutex_);
  if (owned_cuda_ != nullptr) return owned_cuda_;
  std::shared_ptr<cuda::CudaApi> cuda = options_.cuda;
  if (cuda == nullptr) {
    TANDEM_ASSIGN_OR_RETURN(cuda::Loaded<cuda::CudaApi> loaded, cuda::LoadCuda());
    cuda = std::move(loaded.api);
  }
  int count = 0;
  const int error = cuda->GetDeviceCount(&count);
  if (error != kCudaSuccess || count == 0) {
    cuda->GetLastError();
    return absl::FailedPreconditionError(
        absl::StrCat("no CUDA device", error == kCudaSuccess ? "" : ": ",
                     error == kCudaSuccess ? "" : cuda->GetErrorString(error)));
  }
  num_gpus_ = count;
  owned_cuda_ = std::move(cuda);
  cuda_.store(owned_cuda_.get());
  return owned_cuda_;
}

absl::StatusOr<PinnedMemory*> GpuCopier::Pinned(Direction direction, int gpu) {
  constexpr uint64_t kUnit = 4096;
  absl::MutexLock lock(&setup_mutex_);
  std::unique_ptr<PinnedMemory>& pinned = pinned_[static_cast<size_t>(direction)];
  if (pinned == nullptr) {
    absl::StatusOr<std::unique_ptr<PinnedMemory>> made =
        PinnedMemory::Allocate(owned_cuda_, gpu, (options_.pinned_bytes + kUnit - 1) / kUnit * kUnit);
    if (!made.ok()) {
      return absl::Status(made.status().code(), absl::StrCat(made.status().message(),
                                                             "; ClientOptions::pinned_bytes sets how much"));
    }
    pinned = *std::move(made);
  }
  return pinned.get();
}

absl::Status GpuCopier::CheckArray(const GpuArray& array) const {
  if (array.gpu < 0 || array.gpu >= num_gpus_) {
    return absl::InvalidArgumentError(absl::StrCat(array.name, " are said to be on GPU ", array.gpu,
                                                   "; expected a GPU from 0 to ", num_gpus_ - 1,
                                                   ", which this process sees"));
  }
  if (array.bytes == 0) return absl::OkStatus();
  const DeviceScope on_gpu(cuda_.load(), array.gpu);
  cuda::CudaApi& cuda = *cuda_.load();
  const auto find = [&](const void* at) {
    cuda::MemoryKind kind = cuda::MemoryKind::kUnregistered;
    int gpu = -1;
    if (cuda.PointerGetAttributes(at, &kind, &gpu) != kCudaSuccess) {
      cuda.GetLastError();
      kind = cuda::MemoryKind::kUnregistered;
    }
    return std::make_pair(kind, gpu);
  };
  const auto usable = [&](const std::pair<cuda::MemoryKind, int>& found) {
    return found.first == cuda::MemoryKind::kManaged ||
           (found.first == cuda::MemoryKind::kDevice && found.second == array.gpu);
  };
  const auto first = find(array.memory);
  if (!usable(first)) {
    const std::string actual = first.first == cuda::MemoryKind::kDevice
                                   ? absl::StrCat("memory of GPU ", first.second)
                                   : "host memory, or no memory that CUDA knows";
    return absl::InvalidArgumentError(
        absl::StrCat(array.name, " are ", actual, "; expected ", array.bytes, " bytes of GPU ", array.gpu,
                     ", as the part's device says. Device::Cpu() is for host memory"));
  }
  if (!usable(find(static_cast<const char*>(array.memory) + array.bytes - 1))) {
    return absl::InvalidArgumentError(absl::StrCat(array.name, " begin in memory of GPU ", array.gpu,
                                                   " that is too short; expected ", array.bytes, " bytes"));
  }
  bool capturing = false;
  const int error = cuda.StreamIsCapturing(array.stream, &capturing);
  if (error != kCudaSuccess) cuda.GetLastError();
  if (error != kCudaSuccess && error != cuda::kCudaStreamCaptureImplicit) {
    return absl::InvalidArgumentError(absl::StrCat("the stream of ", array.name, " is no stream of GPU ",
                                                   array.gpu, ": CUDA: ", cuda.GetErrorString(error)));
  }
  if (!capturing && error == kCudaSuccess) return absl::OkStatus();
  return absl::FailedPreconditionError(absl::StrCat(
      "the stream of ", array.name, " is being captured into a CUDA graph, which cannot contain ",
      "pulls and pushes; call them before cudaStreamBeginCapture or after cudaStreamEndCapture"));
}

absl::StatusOr<std::shared_ptr<GpuCopier::Rows>> GpuCopier::Stage(std::vector<GpuArray> arrays) {
  return StageFor(Direction::kToGpu, std::move(arrays));
}

char* GpuCopier::HostMemory(const Rows& rows, size_t i) { return rows.host[i].get(); }

absl::StatusOr<std::shared_ptr<GpuCopier::Rows>> GpuCopier::StageFor(Direction direction,
                                                                     std::vector<GpuArray> arrays) {
  const absl::StatusOr<std::shared_ptr<cuda::CudaApi>> loaded = Cuda();
  if (!loaded.ok()) {
    return Annotate(loaded.status(),
                    absl::StrCat(arrays.front().name, " are said to be on GPU ", arrays.front().gpu));
  }
  cuda::CudaApi& cuda = **loaded;
  for (const GpuArray& array : arrays) TANDEM_RETURN_IF_ERROR(CheckArray(array));
  TANDEM_ASSIGN_OR_RETURN(PinnedMemory* const pinned, Pinned(direction, arrays.front().gpu));
  for (GpuArray& array : arrays) {
    // The copier's thread cannot name the stream of this one.
    if (array.stream == PerThreadStream()) array.ordered = false;
  }
  auto rows = std::make_shared<Rows>(this, std::move(arrays));
  for (size_t a = 0; a < rows->arrays.size(); ++a) {
    const GpuArray& array = rows->arrays[a];
    if (array.bytes == 0) continue;
    auto group = std::find_if(rows->groups.begin(), rows->groups.end(), [&](const Group& one) {
      return one.stream->gpu == array.gpu && one.program_stream == array.stream &&
             one.ordered == array.ordered;
    });
    if (group == rows->groups.end()) {
      const DeviceScope on_gpu(&cuda, array.gpu);
      TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<CopyStream> stream, TakeStream(array.gpu));
      rows->groups.push_back(
          {.stream = std::move(stream), .program_stream = array.stream, .ordered = array.ordered});
      group = rows->groups.end() - 1;
      // Kernels that are queued now may still read the old rows, or write the gradients.
      int error = cuda.EventRecord(group->stream->event, array.stream);
      if (error == cuda::kCudaInvalidResourceHandle) {
        cuda.GetLastError();
        return absl::InvalidArgumentError(absl::StrCat("the stream of ", array.name,
                                                       " is a stream of another GPU; expected one of GPU ",
                                                       array.gpu, ", as the part's device says"));
      }
      if (error != kCudaSuccess) return Error("cudaEventRecord", array.name, array.gpu, error);
      error = cuda.StreamWaitEvent(group->stream->stream, group->stream->event);
      if (error != kCudaSuccess) return Error("cudaStreamWaitEvent", array.name, array.gpu, error);
    }
    group->arrays.push_back(a);
    // After TakeStream, which frees regions.
    rows->host[a] = pinned->TryTakeRegion(array.bytes);
    rows->pinned[a] = rows->host[a] != nullptr;
    if (!rows->pinned[a]) rows->host[a] = buffers_.Get(array.bytes);
  }
  return rows;
}

absl::StatusOr<std::unique_ptr<GpuCopier::CopyStream>> GpuCopier::TakeStream(int gpu) {
  cuda::CudaApi& cuda = *cuda_.load();
  absl::MutexLock lock(&mutex_);
  Reclaim();
  const auto idle =
      std::find_if(idle_.begin(), idle_.end(), [gpu](const auto& one) { return one->gpu == gpu; });
  if (idle != idle_.end()) {
    std::unique_ptr<CopyStream> stream = std::move(*idle);
    idle_.erase(idle);
    return stream;
  }
  auto stream = std::make_unique<CopyStream>();
  stream->gpu = gpu;
  const char* call = "cudaStreamCreateWithFlags";
  int error = cuda.StreamCreateNonBlocking(&stream->stream);
  if (error == kCudaSuccess) {
    call = "cudaEventCreateWithFlags";
    error = cuda.EventCreate(&stream->event);
  }
  for (void*& event : stream->piece_events) {
    if (error == kCudaSuccess) error = cuda.EventCreate(&event);
  }
  if (error == kCudaSuccess) return stream;
  Free(stream.get());
  return Error(call, "the copies of a call", gpu, error);
}

void GpuCopier::Free(CopyStream* stream) {
  cuda::CudaApi& cuda = *cuda_.load();
  const DeviceScope on_gpu(&cuda, stream->gpu);
  for (void* event : {stream->event, stream->piece_events[0], stream->piece_events[1]}) {
    if (event != nullptr) cuda.EventDestroy(event);
  }
  if (stream->stream != nullptr) cuda.StreamDestroy(stream->stream);
}

void GpuCopier::ReturnStream(std::unique_ptr<CopyStream> stream, void* const* waiting) {
  cuda::CudaApi& cuda = *cuda_.load();
  const DeviceScope on_gpu(&cuda, stream->gpu);
  int error = cuda.EventRecord(stream->event, stream->stream);
  bool capturing = false;  // a wait for other work would end the capture with an error
  if (error == kCudaSuccess && waiting != nullptr &&
      (cuda.StreamIsCapturing(*waiting, &capturing) != kCudaSuccess || capturing ||
       cuda.StreamWaitEvent(*waiting, stream->event) != kCudaSuccess)) {
    cuda.GetLastError();
  }
  absl::MutexLock lock(&mutex_);
  if (error == kCudaSuccess) {
    busy_.push_back(std::move(stream));
  } else {
    cuda.GetLastError();
    broken_.push_back(std::move(stream));
  }
}

void GpuCopier::Reclaim() {
  cuda::CudaApi& cuda = *cuda_.load();
  for (size_t i = 0; i < busy_.size();) {
    const int state = cuda.EventQuery(busy_[i]->event);
    if (state != kCudaSuccess) cuda.GetLastError();
    if (state == cuda::kCudaNotReady) {
      ++i;
      continue;
    }
    if (state == kCudaSuccess) busy_[i]->held.clear();
    (state == kCudaSuccess ? idle_ : broken_).push_back(std::move(busy_[i]));
    busy_[i] = std::move(busy_.back());
    busy_.pop_back();
  }
}

absl::StatusOr<bool> GpuCopier::Advance(Direction direction, Rows* rows) {
  bool moved = false;
  for (Group& group : rows->groups) {
    if (group.ended) continue;
    TANDEM_ASSIGN_OR_RETURN(PinnedMemory* const pinned, Pinned(direction, group.stream->gpu));
    const DeviceScope on_gpu(cuda_.load(), group.stream->gpu);
    TANDEM_ASSIGN_OR_RETURN(const bool group_moved, AdvanceGroup(direction, pinned, rows, &group));
    moved = moved || group_moved;
  }
  return moved;
}

absl::StatusOr<bool> GpuCopier::AdvanceGroup(Direction direction, PinnedMemory* pinned, Rows* rows,
                                             Group* group) {
  cuda::CudaApi& cuda = *cuda_.load();
  const CopyStream& stream = *group->stream;
  bool moved = false;
  for (; group->next < group->arrays.size(); ++group->next, group->offset = 0) {
    const size_t a = group->arrays[group->next];
    const GpuArray& array = rows->arrays[a];
    if (!rows->pinned[a]) {
      TANDEM_ASSIGN_OR_RETURN(const bool piece_moved, CopyPieces(direction, pinned, rows, a, group));
      moved = moved || piece_moved;
      const bool copying = std::any_of(group->pieces.begin(), group->pieces.end(),
                                       [](const Piece& piece) { return piece.copying; });
      // Pieces from a GPU must be copied out; those to a GPU may be on their way.
      if (group->offset < array.bytes || (direction == Direction::kFromGpu && copying)) return moved;
      continue;
    }
    char* const host = rows->host[a].get();
    const bool to_gpu = direction == Direction::kToGpu;
    const int error = cuda.MemcpyAsync(to_gpu ? array.memory : host, to_gpu ? host : array.memory,
                                       array.bytes, stream.stream);
    if (error != kCudaSuccess) return Error("cudaMemcpyAsync", array.name, array.gpu, error);
    group->begun = moved = true;
  }
  const std::string& name = rows->arrays[group->arrays.back()].name;
  if (!group->issued) {
    int error = cuda.EventRecord(stream.event, stream.stream);
    if (error != kCudaSuccess) return Error("cudaEventRecord", name, stream.gpu, error);
    if (group->ordered && direction == Direction::kToGpu) {
      error = cuda.StreamWaitEvent(group->program_stream, stream.event);
      if (error != kCudaSuccess) return Error("cudaStreamWaitEvent", name, stream.gpu, error);
      group->issued = group->ended = true;
      return true;
    }
    group->issued = moved = true;
  }
  const int state = cuda.EventQuery(stream.event);
  if (state == cuda::kCudaNotReady) {
    cuda.GetLastError();
    return moved;
  }
  if (state != kCudaSuccess) return Error("cudaEventQuery", name, stream.gpu, state);
  group->copied = group->ended = true;
  return true;
}

absl::StatusOr<bool> GpuCopier::CopyPieces(Direction direction, PinnedMemory* pinned, Rows* rows, size_t a,
                                           Group* group) {
  cuda::CudaApi& cuda = *cuda_.load();
  const GpuArray& array = rows->arrays[a];
  char* const host = rows->host[a].get();
  const bool to_gpu = direction == Direction::kToGpu;
  bool moved = false;
  if (!group->reached) {
    // A piece that waits for the program's work is missing in other calls.
    const int state = cuda.EventQuery(group->stream->event);
    if (state == cuda::kCudaNotReady) {
      cuda.GetLastError();
      return false;
    }
    if (state != kCudaSuccess) return Error("cudaEventQuery", array.name, array.gpu, state);
    group->reached = true;
  }
  for (Piece& piece : group->pieces) {
    if (!piece.copying) continue;
    const int state = cuda.EventQuery(piece.event);
    if (state == cuda::kCudaNotReady) {
      cuda.GetLastError();
      continue;
    }
    if (state != kCudaSuccess) return Error("cudaEventQuery", array.name, array.gpu, state);
    if (!to_gpu) std::memcpy(host + piece.offset, piece.memory.get(), piece.bytes);
    piece.copying = false;
    moved = true;
  }
  group->lacks_piece = false;
  for (size_t p = 0; p < group->pieces.size() && group->offset < array.bytes; ++p) {
    Piece& piece = group->pieces[p];
    if (piece.copying) continue;
    if (piece.memory == nullptr) piece.memory = pinned->TryTakePiece();
    if (piece.memory == nullptr) {
      {
        absl::MutexLock lock(&mutex_);
        Reclaim();
      }
      piece.memory = pinned->TryTakePiece();
      if (piece.memory == nullptr) {
        group->lacks_piece = std::none_of(group->pieces.begin(), group->pieces.end(),
                                          [](const Piece& one) { return one.copying; });
        break;
      }
    }
    piece.event = group->stream->piece_events[p];
    piece.offset = group->offset;
    piece.bytes = std::min(pinned->piece_bytes(), array.bytes - group->offset);
    char* const on_gpu = static_cast<char*>(array.memory) + piece.offset;
    if (to_gpu) std::memcpy(piece.memory.get(), host + piece.offset, piece.bytes);
    int error = cuda.MemcpyAsync(to_gpu ? on_gpu : piece.memory.get(), to_gpu ? piece.memory.get() : on_gpu,
                                 piece.bytes, group->stream->stream);
    if (error != kCudaSuccess) return Error("cudaMemcpyAsync", array.name, array.gpu, error);
    piece.copying = group->begun = true;
    error = cuda.EventRecord(piece.event, group->stream->stream);
    if (error != kCudaSuccess) return Error("cudaEventRecord", array.name, array.gpu, error);
    group->offset += piece.bytes;
    moved = true;
  }
  return moved;
}

absl::Status GpuCopier::Late(const Rows& rows) const {
  const auto late =
      std::find_if(rows.groups.begin(), rows.groups.end(), [](const Group& group) { return !group.ended; });
  const GpuArray& array = rows.arrays[late->arrays[std::min(late->next, late->arrays.size() - 1)]];
  const std::string reason =
      late->lacks_piece
          ? "the copies of other calls use all pinned memory, and have not ended either"
          : absl::StrCat("GPU ", array.gpu, " still runs it, or work that the program queued before it");
  return absl::DeadlineExceededError(
      absl::StrCat("the copy of ", array.name, " has not ended in time: ", reason));
}

void GpuCopier::Finish(std::shared_ptr<Rows> rows, absl::Time deadline,
                       absl::AnyInvocable<void(absl::Status) &&> done) {
  absl::MutexLock lock(&mutex_);
  new_jobs_.push_back({std::move(rows), deadline, std::move(done)});
  if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
}

void GpuCopier::Run() {
  std::vector<Job> jobs;
  absl::Time last_moved = MonotonicNow();
  for (;;) {
    {
      absl::MutexLock lock(&mutex_);
      const auto called = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
        return stopping_ || !new_jobs_.empty();
      };
      const absl::Duration idle = MonotonicNow() - last_moved;
      if (jobs.empty()) {
        mutex_.Await(absl::Condition(&called));
      } else if (idle > kBusyPolling) {
        const auto more = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !new_jobs_.empty(); };
        AwaitFor(&mutex_, absl::Condition(&more), std::min(idle / 16, absl::Milliseconds(1)));
      }
      if (!new_jobs_.empty()) last_moved = MonotonicNow();
      for (Job& job : new_jobs_) jobs.push_back(std::move(job));
      new_jobs_.clear();
      if (jobs.empty()) return;
    }
    for (size_t i = 0; i < jobs.size();) {
      Job& job = jobs[i];
      const absl::StatusOr<bool> moved = Advance(Direction::kToGpu, job.rows.get());
      absl::Status status = moved.status();
      if (moved.ok() && *moved) last_moved = MonotonicNow();
      if (moved.ok() && !job.rows->ended()) {
        if (MonotonicNow() < job.deadline) {
          ++i;
          continue;
        }
        status = Late(*job.rows);
      }
      Job ended = std::move(job);
      jobs.erase(jobs.begin() + static_cast<std::ptrdiff_t>(i));
      ended.rows.reset();
      std::move(ended.done)(std::move(status));
    }
    if (MonotonicNow() - last_moved <= kBusyPolling) std::this_thread::yield();
  }
}

absl::StatusOr<std::vector<std::shared_ptr<char>>> GpuCopier::Fetch(std::vector<GpuArray> arrays,
                                                                    absl::Time deadline) {
  TANDEM_ASSIGN_OR_RETURN(std::shared_ptr<Rows> rows, StageFor(Direction::kFromGpu, std::move(arrays)));
  absl::Time ask = MonotonicNow() + kAskInterval;
  std::optional<cuda::PollPause> pause;
  for (;;) {
    TANDEM_ASSIGN_OR_RETURN(const bool moved, Advance(Direction::kFromGpu, rows.get()));
    if (rows->ended()) return std::move(rows->host);
    const absl::Time now = MonotonicNow();
    if (now >= deadline) return Late(*rows);
    if (options_.go_on_waiting && now >= ask) {
      if (!options_.go_on_waiting()) return absl::CancelledError("the wait for a GPU was cancelled");
      ask = now + kAskInterval;
    }
    if (moved || !pause.has_value()) pause.emplace();
    pause->Wait();
  }
}

}  // namespace tandem::ps

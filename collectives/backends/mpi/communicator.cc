// SPDX-License-Identifier: Apache-2.0
#include "collectives/backends/mpi/communicator.h"

#include <mpi.h>

#include <cstdlib>
#include <utility>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/strings/str_split.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status.h"

namespace tandem::collectives::mpi {
namespace {

// Identifies one mpirun: each has a world of its own, with a rank 0.
std::string JobIdentity() {
  for (const char* name : {"PMIX_NAMESPACE", "PMI_JOBID", "OMPI_MCA_ess_base_jobid"}) {
    if (const char* value = std::getenv(name)) return value;
  }
  return "";
}

// "rank/<r>" = "<rank in MPI_COMM_WORLD>/<job>".
absl::StatusOr<std::vector<int>> WorldRanks(Engine* engine, const BackendOptions& options) {
  auto key = [](int rank) { return absl::StrCat("rank/", rank); };
  const std::string job = JobIdentity();
  TANDEM_RETURN_IF_ERROR(options.store->Set(key(options.rank), absl::StrCat(engine->world_rank(), "/", job)));
  std::vector<int> ranks(options.world_size, -1);
  std::vector<int> group_rank_of(engine->world_size(), -1), absent;
  for (int rank = 0; rank < options.world_size; ++rank) {
    const absl::Duration left = std::max(options.deadline - MonotonicNow(), absl::ZeroDuration());
    const absl::StatusOr<std::string> text = options.store->Get(key(rank), left);
    if (absl::IsDeadlineExceeded(text.status())) {
      absent.push_back(rank);
      continue;
    }
    TANDEM_RETURN_IF_ERROR(text.status());
    const std::pair<std::string, std::string> parts = absl::StrSplit(*text, absl::MaxSplits('/', 1));
    int world_rank = -1;
    if (!absl::SimpleAtoi(parts.first, &world_rank) || world_rank < 0 || world_rank >= engine->world_size() ||
        parts.second != job) {
      return absl::FailedPreconditionError(
          absl::StrCat("rank ", rank, " was started by another mpirun (job ", parts.second, ", rank ",
                       parts.first, ") than rank ", options.rank, " (job ", job, ", ", engine->world_size(),
                       " processes); start all ranks with one mpirun"));
    }
    if (group_rank_of[world_rank] >= 0) {
      return absl::FailedPreconditionError(
          absl::StrCat("ranks ", group_rank_of[world_rank], " and ", rank, " are one process (rank ",
                       world_rank, " of MPI_COMM_WORLD); with MPI each rank needs its own"));
    }
    group_rank_of[world_rank] = rank;
    ranks[rank] = world_rank;
  }
  if (!absent.empty()) {
    return absl::DeadlineExceededError(
        absl::StrCat("no MPI process came for rank ", absl::StrJoin(absent, ", ")));
  }
  return ranks;
}

absl::StatusOr<Communicators> Create(const std::vector<int>& world_ranks, int tag, int largest_tag) {
  // The program may want errors of its own calls to be fatal.
  MPI_Errhandler handler;
  MPI_Comm_get_errhandler(MPI_COMM_WORLD, &handler);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, MPI_ERRORS_RETURN);
  MPI_Group world, members;
  MPI_Comm operations = MPI_COMM_NULL, auxiliary = MPI_COMM_NULL;
  MPI_Comm_group(MPI_COMM_WORLD, &world);
  MPI_Group_incl(world, static_cast<int>(world_ranks.size()), world_ranks.data(), &members);
  absl::Status status =
      FromMpi(MPI_Comm_create_group(MPI_COMM_WORLD, members, tag, &operations), "MPI_Comm_create_group");
  MPI_Group_free(&members);
  MPI_Group_free(&world);
  MPI_Comm_set_errhandler(MPI_COMM_WORLD, handler);
  if (handler != MPI_ERRHANDLER_NULL) MPI_Errhandler_free(&handler);
  TANDEM_RETURN_IF_ERROR(status);
  MPI_Comm_set_errhandler(operations, MPI_ERRORS_RETURN);
  TANDEM_RETURN_IF_ERROR(FromMpi(MPI_Comm_dup(operations, &auxiliary), "MPI_Comm_dup"));
  MPI_Comm_set_errhandler(auxiliary, MPI_ERRORS_RETURN);
  return Communicators{MPI_Comm_c2f(operations), MPI_Comm_c2f(auxiliary), largest_tag};
}

class NoteSender final : public Activity {
 public:
  NoteSender(const Communicators& communicators, int rank, int world_size, const Note& note)
      : communicators_(communicators), rank_(rank), world_size_(world_size), note_(note) {}
  bool Poll() override {
    if (requests_.empty()) {
      const MPI_Comm comm = MPI_Comm_f2c(communicators_.auxiliary);
      for (int peer = 0; peer < world_size_; ++peer) {
        if (peer == rank_) continue;
        MPI_Request request = MPI_REQUEST_NULL;
        if (MPI_Isend(&note_, sizeof(note_), MPI_BYTE, peer, communicators_.notes_tag, comm, &request) ==
            MPI_SUCCESS) {
          requests_.push_back(request);
        }
      }
    }
    int over = 1;
    const int error =
        MPI_Testall(static_cast<int>(requests_.size()), requests_.data(), &over, MPI_STATUSES_IGNORE);
    return over != 0 || error != MPI_SUCCESS;
  }
  bool background() const override { return true; }

 private:
  const Communicators communicators_;
  const int rank_, world_size_;
  const Note note_;
  std::vector<MPI_Request> requests_;
};

class MpiNoteReader final : public NoteReader, public Activity {
 public:
  MpiNoteReader(const Communicators& communicators, const std::string& group,
                std::shared_ptr<Monitor> monitor, std::function<void()> on_broken)
      : communicators_(communicators),
        group_(group),
        monitor_(std::move(monitor)),
        on_broken_(std::move(on_broken)) {}
  void Stop() override {
    absl::MutexLock lock(&mutex_);
    stopped_ = true;
    on_broken_ = nullptr;
  }
  bool Poll() override {
    absl::MutexLock lock(&mutex_);
    if (stopped_) {
      if (request_ == MPI_REQUEST_NULL) return true;
      if (!cancelled_) MPI_Cancel(&request_);
      cancelled_ = true;
    } else if (request_ == MPI_REQUEST_NULL) {
      const int error = MPI_Irecv(&note_, sizeof(note_), MPI_BYTE, MPI_ANY_SOURCE, communicators_.notes_tag,
                                  MPI_Comm_f2c(communicators_.auxiliary), &request_);
      if (error != MPI_SUCCESS) return true;
    }
    int over = 0;
    MPI_Status status;
    if (MPI_Test(&request_, &over, &status) != MPI_SUCCESS) return true;
    if (over == 0) return false;
    if (stopped_) return true;
    Handle(status.MPI_SOURCE);
    return false;
  }
  bool background() const override { return true; }

 private:
  void Handle(int source) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    if (note_.kind == Note::kArrived) {
      monitor_->Arrive(source, note_.number);
      return;
    }
    note_.text[sizeof(note_.text) - 1] = 0;
    absl::Status reason(static_cast<absl::StatusCode>(note_.code),
                        absl::StrCat("rank ", source, " of group '", group_, "' gave up: ", note_.text));
    if (monitor_->Break(reason) && on_broken_ != nullptr) on_broken_();
  }

  const Communicators communicators_;
  const std::string group_;
  const std::shared_ptr<Monitor> monitor_;
  absl::Mutex mutex_;
  bool stopped_ ABSL_GUARDED_BY(mutex_) = false;
  std::function<void()> on_broken_ ABSL_GUARDED_BY(mutex_);
  bool cancelled_ = false;
  Note note_;
  MPI_Request request_ = MPI_REQUEST_NULL;
};

}  // namespace

absl::StatusOr<Communicators> MakeCommunicators(Engine* engine, const BackendOptions& options) {
  TANDEM_ASSIGN_OR_RETURN(const std::vector<int> ranks, WorldRanks(engine, options));
  // Tags separate groups that different ranks of one world make at the same time.
  const int tag = static_cast<int>(std::hash<std::string>()(options.group) % 32000);
  auto made = std::make_shared<Communicators>();
  auto create = [made, ranks, tag, engine] {
    absl::StatusOr<Communicators> communicators = Create(ranks, tag, engine->largest_tag());
    if (communicators.ok()) *made = *communicators;
    return communicators.status();
  };
  TANDEM_RETURN_IF_ERROR(engine->Call("MPI_Comm_create_group", create, options.deadline));
  return *made;
}

void FreeCommunicators(Engine* engine, const Communicators& communicators) {
  auto free = [communicators] {
    MPI_Comm operations = MPI_Comm_f2c(communicators.operations),
             auxiliary = MPI_Comm_f2c(communicators.auxiliary);
    MPI_Comm_free(&operations);
    MPI_Comm_free(&auxiliary);
    return absl::OkStatus();
  };
  (void)engine->Call("MPI_Comm_free", free, MonotonicNow() + absl::Seconds(2));
}

void SendNote(Engine* engine, const Communicators& communicators, int rank, int world_size,
              const Note& note) {
  engine->Add(std::make_shared<NoteSender>(communicators, rank, world_size, note));
}

std::shared_ptr<NoteReader> NoteReader::Start(Engine* engine, const Communicators& communicators,
                                              const std::string& group, std::shared_ptr<Monitor> monitor,
                                              std::function<void()> on_broken) {
  auto reader =
      std::make_shared<MpiNoteReader>(communicators, group, std::move(monitor), std::move(on_broken));
  engine->Add(reader);
  return reader;
}

}  // namespace tandem::collectives::mpi

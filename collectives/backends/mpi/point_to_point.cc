// SPDX-License-Identifier: Apache-2.0
#include "collectives/backends/mpi/point_to_point.h"

#include <mpi.h>

#include <algorithm>
#include <cstring>
#include <list>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status.h"

namespace tandem::collectives::mpi {
namespace {

constexpr size_t kFirstBytes = 16 << 10;  // of data that are sent with the head
constexpr size_t kPartBytes = 1 << 20;

struct Head {
  uint64_t count = 0;
  uint32_t parts_tag = 0;  // of the rest
  DType dtype = DType::kU8;
  uint8_t unused[3] = {};
};

size_t BytesOf(const Operation& o) {
  return (o.kind == OpKind::kSend ? o.in.count : o.out.count) * SizeOf(o.dtype);
}

}  // namespace

void Transfer::Finish(absl::StatusOr<int> result) {
  Backend::Done call;
  {
    absl::MutexLock lock(&mutex);
    if (over) return;
    over = true;
    call = std::move(done);
    done = nullptr;
  }
  call(std::move(result));
}

bool Transfer::Copy(void* to, const void* from, size_t bytes) {
  absl::MutexLock lock(&mutex);
  if (over) return false;
  if (bytes > 0) std::memcpy(to, from, bytes);
  return true;
}

struct PointToPoint::Shared {
  Shared(std::string group, GiveUp give_up) : group(std::move(group)), give_up(std::move(give_up)) {}

  std::string Here(const Operation& o) const { return absl::StrCat(Describe(o), " on group '", group, "'"); }
  // Ends `transfer`, and breaks the group.
  void Break(Transfer* transfer, const absl::Status& status) {
    transfer->Finish(status);
    absl::MutexLock lock(&give_up_mutex);
    if (give_up != nullptr) give_up(status);
  }
  // Returns true if the transfer has timed out; the group is then broken.
  bool TimedOut(Transfer* transfer, absl::string_view what) {
    if (MonotonicNow() < transfer->deadline) return false;
    Break(transfer,
          absl::DeadlineExceededError(absl::StrCat(Here(transfer->operation), ": ", what, " within ",
                                                   absl::FormatDuration(transfer->operation.timeout))));
    return true;
  }

  const std::string group;
  absl::Mutex give_up_mutex;
  GiveUp give_up ABSL_GUARDED_BY(give_up_mutex);
  absl::Mutex mutex;
  absl::Status failed ABSL_GUARDED_BY(mutex);
  std::list<std::shared_ptr<Transfer>> pending ABSL_GUARDED_BY(mutex);
  uint32_t next_parts_tag ABSL_GUARDED_BY(mutex) = 0;
  std::vector<std::shared_ptr<Transfer>> new_receives ABSL_GUARDED_BY(mutex);
  bool receiving ABSL_GUARDED_BY(mutex) = false;  // a Receiver is with the engine
};

namespace {

using Shared = PointToPoint::Shared;

class Sender final : public Activity {
 public:
  Sender(std::shared_ptr<Shared> shared, std::shared_ptr<Transfer> transfer,
         const Communicators& communicators, uint32_t parts_tag)
      : shared_(std::move(shared)), transfer_(std::move(transfer)), communicators_(communicators) {
    const Operation& o = transfer_->operation;
    head_.count = o.in.count;
    head_.dtype = o.dtype;
    head_.parts_tag = parts_tag;
  }

  bool Poll() override {
    const Operation& o = transfer_->operation;
    const size_t bytes = BytesOf(o);
    if (request_ != MPI_REQUEST_NULL) {
      int over = 0;
      if (!Check(MPI_Test(&request_, &over, MPI_STATUS_IGNORE), "MPI_Isend")) return true;
      if (over == 0) {
        if (!finished_) finished_ = shared_->TimedOut(transfer_.get(), "it was not received");
        return false;
      }
    }
    if (begun_ && sent_ == bytes) {
      transfer_->Finish(o.root);
      return true;
    }
    const size_t part = std::min(bytes - sent_, begun_ ? kPartBytes : kFirstBytes);
    const size_t head = begun_ ? 0 : sizeof(Head);
    if (buffer_ == nullptr || begun_) buffer_.reset(new char[head + part]);
    std::memcpy(buffer_.get(), &head_, head);
    if (!transfer_->Copy(buffer_.get() + head, static_cast<const char*>(o.in.data) + sent_, part))
      return true;
    const MPI_Comm comm = MPI_Comm_f2c(begun_ ? communicators_.auxiliary : communicators_.operations);
    const int tag = begun_ ? static_cast<int>(head_.parts_tag) : static_cast<int>(o.tag);
    begun_ = true;
    sent_ += part;
    if (!Check(
            MPI_Isend(buffer_.get(), static_cast<int>(head + part), MPI_BYTE, o.root, tag, comm, &request_),
            "MPI_Isend")) {
      return true;
    }
    // The data are in memory of the engine: a message without further chunks counts as sent.
    if (sent_ == bytes) {
      transfer_->Finish(o.root);
      finished_ = true;
    }
    return false;
  }
  bool background() const override { return finished_; }

 private:
  bool Check(int error, absl::string_view call) {
    const absl::Status status = FromMpi(error, call);
    if (!status.ok()) shared_->Break(transfer_.get(), Annotate(status, shared_->Here(transfer_->operation)));
    return status.ok();
  }

  const std::shared_ptr<Shared> shared_;
  const std::shared_ptr<Transfer> transfer_;
  const Communicators communicators_;
  Head head_;
  bool begun_ = false, finished_ = false;
  size_t sent_ = 0;
  std::unique_ptr<char[]> buffer_;
  MPI_Request request_ = MPI_REQUEST_NULL;
};

// One message, from the moment at which it was matched to a receive.
class Arrival {
 public:
  Arrival(Shared* shared, std::shared_ptr<Transfer> transfer, int source, int bytes, MPI_Message message)
      : transfer_(std::move(transfer)), source_(source), first_bytes_(bytes), buffer_(new char[bytes]) {
    error_ = MPI_Imrecv(buffer_.get(), bytes, MPI_BYTE, &message, &request_);
  }

  bool Poll(Shared* shared, const Communicators& communicators) {
    int over = 0;
    if (error_ == MPI_SUCCESS) error_ = MPI_Test(&request_, &over, MPI_STATUS_IGNORE);
    if (error_ != MPI_SUCCESS) {
      shared->Break(transfer_.get(),
                    Annotate(FromMpi(error_, "MPI_Imrecv"), shared->Here(transfer_->operation)));
      return true;
    }
    if (over == 0) {
      if (!timed_out_) timed_out_ = shared->TimedOut(transfer_.get(), "its message did not arrive wholly");
      return false;
    }
    const Operation& o = transfer_->operation;
    const char* data = buffer_.get();
    size_t bytes = in_flight_;
    if (!begun_) {
      begun_ = true;
      std::memcpy(&head_, data, std::min<size_t>(sizeof(Head), first_bytes_));
      data += sizeof(Head);
      bytes = first_bytes_ - sizeof(Head);
      total_ = head_.count * SizeOf(head_.dtype);
      if (head_.dtype != o.dtype || head_.count != o.out.count) {
        transfer_->Finish(absl::InvalidArgumentError(absl::StrCat(
            "ranks of group '", shared->group, "' disagree: rank ", source_, " sends ", Name(head_.dtype),
            " x ", head_.count, ", but ", Describe(o), " expects ", Name(o.dtype), " x ", o.out.count,
            "; both must give the same dtype and count; the message was dropped")));
        dropped_ = true;
      }
    }
    if (!dropped_) transfer_->Copy(static_cast<char*>(o.out.data) + received_, data, bytes);
    received_ += bytes;
    if (received_ >= total_) {
      transfer_->Finish(source_);
      return true;
    }
    in_flight_ = std::min(total_ - received_, kPartBytes);
    buffer_.reset(new char[in_flight_]);
    error_ = MPI_Irecv(buffer_.get(), static_cast<int>(in_flight_), MPI_BYTE, source_,
                       static_cast<int>(head_.parts_tag), MPI_Comm_f2c(communicators.auxiliary), &request_);
    return false;
  }

 private:
  const std::shared_ptr<Transfer> transfer_;
  const int source_, first_bytes_;
  std::unique_ptr<char[]> buffer_;
  MPI_Request request_ = MPI_REQUEST_NULL;
  int error_ = MPI_SUCCESS;
  bool begun_ = false, dropped_ = false, timed_out_ = false;
  Head head_;
  size_t total_ = 0, received_ = 0, in_flight_ = 0;
};

// Serves all receives of a group, while there are any.
class Receiver final : public Activity {
 public:
  Receiver(std::shared_ptr<Shared> shared, const Communicators& communicators)
      : shared_(std::move(shared)), communicators_(communicators) {}

  bool Poll() override {
    bool broken;
    {
      absl::MutexLock lock(&shared_->mutex);
      for (auto& transfer : shared_->new_receives) waiting_.push_back(std::move(transfer));
      shared_->new_receives.clear();
      broken = !shared_->failed.ok();
      if (broken) waiting_.clear();
      if (waiting_.empty() && arrivals_.empty()) {
        shared_->receiving = false;
        return true;
      }
    }
    failed_ = broken;
    for (auto it = waiting_.begin(); it != waiting_.end();) {
      const auto probed = it++;
      const auto over = Match(probed);
      if (over != waiting_.end()) {
        waiting_.erase(over);
      } else if (shared_->TimedOut(probed->get(), "nothing came")) {
        waiting_.erase(probed);
      }
    }
    arrivals_.remove_if([&](Arrival& arrival) { return arrival.Poll(shared_.get(), communicators_); });
    return false;
  }
  bool background() const override { return failed_; }

 private:
  using Waiting = std::list<std::shared_ptr<Transfer>>;

  // Looks for a message that the receive `probed` matches, and gives it to the oldest receive that matches:
  // an older one may have been probed a moment before the message came. Returns that receive, which is not
  // later than `probed`, or the end if there is no message.
  Waiting::iterator Match(Waiting::iterator probed) {
    const Operation& o = (*probed)->operation;
    int found = 0;
    MPI_Message message = MPI_MESSAGE_NULL;
    MPI_Status status;
    const int error = MPI_Improbe(o.root == kAnySource ? MPI_ANY_SOURCE : o.root, static_cast<int>(o.tag),
                                  MPI_Comm_f2c(communicators_.operations), &found, &message, &status);
    if (error != MPI_SUCCESS) {
      shared_->Break(probed->get(), Annotate(FromMpi(error, "MPI_Improbe"), shared_->Here(o)));
      return probed;
    }
    if (found == 0) return waiting_.end();
    int bytes = 0;
    MPI_Get_count(&status, MPI_BYTE, &bytes);
    const auto oldest = std::find_if(waiting_.begin(), probed, [&](const auto& waiting) {
      const Operation& w = waiting->operation;
      return w.tag == o.tag && (w.root == kAnySource || w.root == status.MPI_SOURCE);
    });
    arrivals_.emplace_back(shared_.get(), *oldest, status.MPI_SOURCE, bytes, message);
    return oldest;
  }

  const std::shared_ptr<Shared> shared_;
  const Communicators communicators_;
  bool failed_ = false;
  Waiting waiting_;  // in the order of their calls
  std::list<Arrival> arrivals_;
};

}  // namespace

PointToPoint::PointToPoint(Engine* engine, const Communicators& communicators, std::string group, int rank,
                           GiveUp give_up)
    : engine_(engine),
      communicators_(communicators),
      rank_(rank),
      shared_(std::make_shared<Shared>(std::move(group), std::move(give_up))) {}

PointToPoint::~PointToPoint() {
  absl::MutexLock lock(&shared_->give_up_mutex);
  shared_->give_up = nullptr;
}

void PointToPoint::Start(const Operation& operation, Backend::Done done) {
  // On the other communicator, tags below notes_tag are used for chunks; here all tags are the user's.
  if (operation.tag > static_cast<uint32_t>(engine_->largest_tag())) {
    return done(absl::InvalidArgumentError(
        absl::StrCat(shared_->Here(operation), ": MPI's tags end at ", engine_->largest_tag())));
  }
  auto transfer = std::make_shared<Transfer>();
  transfer->operation = operation;
  transfer->deadline = MonotonicNow() + operation.timeout;
  auto shared = shared_;
  std::list<std::shared_ptr<Transfer>>::iterator place;
  std::shared_ptr<Activity> activity;
  absl::Status failed;
  {
    absl::MutexLock lock(&shared_->mutex);
    failed = shared_->failed;
    if (failed.ok()) {
      place = shared_->pending.insert(shared_->pending.end(), transfer);
      absl::MutexLock transfer_lock(&transfer->mutex);
      transfer->done = [shared, place, done = std::move(done)](absl::StatusOr<int> result) {
        {
          absl::MutexLock inner(&shared->mutex);
          shared->pending.erase(place);
        }
        done(std::move(result));
      };
      if (operation.kind == OpKind::kSend) {
        const uint32_t tag = shared_->next_parts_tag++ % static_cast<uint32_t>(communicators_.notes_tag);
        activity = std::make_shared<Sender>(shared_, transfer, communicators_, tag);
      } else {
        shared_->new_receives.push_back(transfer);
        if (!shared_->receiving) activity = std::make_shared<Receiver>(shared_, communicators_);
        shared_->receiving = true;
      }
    }
  }
  if (!failed.ok()) return done(failed);
  if (activity != nullptr) engine_->Add(std::move(activity));
}

void PointToPoint::Fail(const absl::Status& reason) {
  std::vector<std::shared_ptr<Transfer>> pending;
  {
    absl::MutexLock lock(&shared_->mutex);
    if (shared_->failed.ok()) shared_->failed = reason;
    pending.assign(shared_->pending.begin(), shared_->pending.end());
  }
  for (const auto& transfer : pending) transfer->Finish(reason);
}

}  // namespace tandem::collectives::mpi

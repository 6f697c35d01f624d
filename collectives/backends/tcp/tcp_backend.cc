// SPDX-License-Identifier: Apache-2.0
#include "collectives/backends/tcp/tcp_backend.h"

#include <algorithm>
#include <utility>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status.h"
#include "collectives/backends/tcp/algorithms.h"
#include "collectives/backends/tcp/exchange.h"
#include "collectives/backends/tcp/links.h"
#include "collectives/backends/tcp/point_to_point.h"
#include "collectives/backends/tcp/shared_failure_state.h"
#include "collectives/ranks.h"
#include "collectives/reduce/reduce.h"
#include "collectives/shape.h"

namespace tandem::collectives {
namespace tcp {
namespace {

// How long a rank that lost a peer looks for the peer's reason before it reports the peer as dead.
constexpr absl::Duration kGrace = absl::Milliseconds(500);
// How long a rank that is done waits for the others to be done too.
constexpr absl::Duration kLeaveTimeout = absl::Seconds(2);

class TcpBackend final : public Backend, private Links::Receiver {
 public:
  explicit TcpBackend(const BackendOptions& options)
      : group_(options.group),
        rank_(options.rank),
        world_size_(options.world_size),
        leave_timeout_(std::min(options.timeout, kLeaveTimeout)),
        exchange_(options.rank, options.world_size),
        point_to_point_(options.group, options.rank, options.world_size,
                        [this](int lost, const absl::Status& reason) { return GiveUp(lost, reason); }),
        failures_(options.store, options.rank) {}

  ~TcpBackend() override {
    if (world_size_ > 1 && links_ != nullptr && Broken().ok()) {
      // A connection that closes fails every wait of its peer, so the ranks leave together. Ranks that are in
      // another operation instead learn that this rank is gone.
      Operation leave;
      leave.kind = OpKind::kLeave;
      (void)RunCollective(leave, rank_, world_size_, MonotonicNow() + leave_timeout_, &exchange_, &scratch_);
    }
    point_to_point_.Stop();
    links_.reset();
    point_to_point_.Fail(absl::AbortedError(absl::StrCat("group '", group_, "' was destroyed")));
  }

  absl::Status Connect(const BackendOptions& options) {
    if (world_size_ == 1) return absl::OkStatus();
    TANDEM_ASSIGN_OR_RETURN(links_, Links::Connect(options.store, group_, rank_, world_size_,
                                                   options.peers[rank_].address, options.deadline, this));
    exchange_.SetLinks(links_.get());
    point_to_point_.SetLinks(links_.get());
    return absl::OkStatus();
  }

  absl::string_view name() const override { return "tcp"; }

  absl::Status Supports(const Operation& operation) const override {
    absl::Status status;
    if (operation.device.kind != Device::Kind::kCpu) {
      status = absl::UnimplementedError("memory of another device than the CPU");
    } else if (Reduces(operation.kind)) {
      status = SupportsReduction(operation.reduce, operation.dtype);
    }
    return Annotate(status, absl::StrCat("backend tcp, ", Name(operation.kind)));
  }

  absl::Status Run(const Operation& operation) override {
    TANDEM_RETURN_IF_ERROR(Broken());
    TANDEM_RETURN_IF_ERROR(Supports(operation));
    TANDEM_RETURN_IF_ERROR(CheckCollective(operation, rank_, world_size_));
    if (world_size_ == 1) {
      RunAlone(operation);
      return absl::OkStatus();
    }
    const absl::Time deadline = MonotonicNow() + operation.timeout;
    if (RunCollective(operation, rank_, world_size_, deadline, &exchange_, &scratch_)) {
      return absl::OkStatus();
    }
    return Break(Explain(operation, exchange_.failure()));
  }

  void StartPointToPoint(const Operation& operation, Done done) override {
    absl::Status status = Broken();
    if (status.ok()) status = CheckPointToPoint(operation, rank_, world_size_);
    if (status.ok()) status = Supports(operation);
    if (!status.ok()) return done(status);
    point_to_point_.Start(operation, std::move(done));
  }

  void Abort(const absl::Status& reason) override {
    const absl::Status why = reason.ok() ? absl::AbortedError("aborted") : reason;
    (void)Break(why, Annotate(why, absl::StrCat("rank ", rank_, " of group '", group_, "' aborted")),
                /*close_first=*/true);
  }

 private:
  absl::StatusOr<char*> FrameBegins(int peer, const Frame& frame) override {
    return OfCollective(frame) ? exchange_.FrameBegins(peer, frame)
                               : point_to_point_.FrameBegins(peer, frame);
  }
  void FrameEnds(int peer, const Frame& frame) override {
    OfCollective(frame) ? exchange_.FrameEnds(peer, frame) : point_to_point_.FrameEnds(peer, frame);
  }
  void FrameSent(int peer, const Frame& frame) override {
    OfCollective(frame) ? exchange_.FrameSent(peer, frame) : point_to_point_.FrameSent(peer, frame);
  }
  void LinkLost(int peer, const std::string& detail) override {
    exchange_.LinkLost(peer, detail);
    point_to_point_.LinkLost(peer, exchange_.HasLeft(peer));
  }
  void TurnEnds() override { point_to_point_.TurnEnds(); }
  static bool OfCollective(const Frame& frame) {
    return frame.type == Frame::Type::kHead || frame.type == Frame::Type::kData;
  }

  std::string Here(const Operation& operation) const {
    return absl::StrCat(Describe(operation), " on group '", group_, "'");
  }
  absl::Status Broken() const {
    absl::MutexLock lock(&mutex_);
    return broken_;
  }
  // Translates an operation's failure into a status.
  absl::Status Explain(const Operation& operation, const Exchange::Failure& failure);
  absl::Status ExplainLost(const std::string& where, absl::Span<const int> ranks, const std::string& detail);
  // After a time-out in the middle of an operation: returns those of `ranks` that do not leave a note. A rank
  // that leaves one was waiting as well; the one that hangs does not.
  std::vector<int> WithoutWaitingRanks(std::vector<int> ranks, const absl::Status& note);
  // Breaks the group, unless it is broken already: stores `note` for the others, and closes. Returns the
  // reason why the group is broken. Ranks that see this rank go find the note if it is stored first. An abort
  // must not wait for the store, so it closes first, and the others look for the note for a while.
  absl::Status Break(const absl::Status& reason, const absl::Status& note, bool close_first);
  absl::Status Break(const absl::Status& reason) { return Break(reason, reason, /*close_first=*/false); }
  absl::Status GiveUp(int lost, const absl::Status& reason);

  const std::string group_;
  const int rank_;
  const int world_size_;
  const absl::Duration leave_timeout_;
  Exchange exchange_;
  PointToPoint point_to_point_;
  Scratch scratch_;
  std::unique_ptr<Links> links_;

  SharedFailureState failures_;
  mutable absl::Mutex mutex_;
  absl::Status broken_ ABSL_GUARDED_BY(mutex_);
};

absl::Status TcpBackend::Explain(const Operation& operation, const Exchange::Failure& failure) {
  const std::string here = Here(operation);
  switch (failure.kind) {
    case Exchange::Failure::Kind::kNone:
    case Exchange::Failure::Kind::kStopped:
      return absl::AbortedError(absl::StrCat(here, ": aborted"));
    case Exchange::Failure::Kind::kTimeout: {
      const std::string within = absl::StrCat(" within ", absl::FormatDuration(operation.timeout));
      if (!failure.arrived) {
        return absl::DeadlineExceededError(
            absl::StrCat(here, ": ", NameRanks(failure.ranks), " did not arrive", within));
      }
      const std::vector<int> ranks = WithoutWaitingRanks(
          failure.ranks, absl::DeadlineExceededError(absl::StrCat(here, ": not finished", within)));
      return absl::DeadlineExceededError(
          absl::StrCat(here, ": the data of ", NameRanks(ranks), " did not arrive", within));
    }
    case Exchange::Failure::Kind::kLost:
      return ExplainLost(here, failure.ranks, failure.detail);
    case Exchange::Failure::Kind::kLeft:
      return absl::UnavailableError(
          absl::StrCat(here, ": ", NameRanks(failure.ranks), " has left the group"));
    case Exchange::Failure::Kind::kDisagreement:
      return absl::InvalidArgumentError(
          Disagreement(group_, rank_, FingerprintOf(operation), failure.ranks[0], failure.theirs));
    case Exchange::Failure::Kind::kSizes:
      break;
  }
  const size_t size = SizeOf(operation.dtype);
  return absl::InvalidArgumentError(
      absl::StrCat("ranks of group '", group_, "' disagree in ", Describe(operation), ": rank ",
                   failure.ranks[0], " sends ", failure.bytes_sent / size, " elements to rank ", rank_,
                   ", which expects ", failure.bytes_expected / size, "; both must give the same count"));
}

absl::Status TcpBackend::ExplainLost(const std::string& where, absl::Span<const int> ranks,
                                     const std::string& detail) {
  if (absl::optional<SharedFailureState::Found> found = failures_.Find(ranks, kGrace)) return found->reason;
  return absl::UnavailableError(
      absl::StrCat(where, ": the connection to ", NameRanks(ranks), " was lost: killed? (", detail, ")"));
}

std::vector<int> TcpBackend::WithoutWaitingRanks(std::vector<int> ranks, const absl::Status& note) {
  failures_.Record(note);
  const absl::Time until = MonotonicNow() + kGrace;
  std::vector<int> silent;
  for (int rank : ranks) {
    if (!failures_.Find({rank}, std::max(until - MonotonicNow(), absl::ZeroDuration())))
      silent.push_back(rank);
  }
  return silent.empty() ? ranks : silent;
}

absl::Status TcpBackend::Break(const absl::Status& reason, const absl::Status& note, bool close_first) {
  bool first = false;
  absl::Status why;
  {
    absl::MutexLock lock(&mutex_);
    first = broken_.ok();
    if (first) broken_ = reason;
    why = broken_;
  }
  exchange_.Stop();
  if (first && !close_first) failures_.Record(note);
  if (links_ != nullptr) links_->Close();  // in every thread: none returns while memory is still in use
  if (first && close_first) failures_.Record(note);
  point_to_point_.Fail(why);
  return why;
}

absl::Status TcpBackend::GiveUp(int lost, const absl::Status& reason) {
  if (absl::Status broken = Broken(); !broken.ok()) return Break(broken);
  if (lost == kAnySource) return Break(reason);
  return Break(ExplainLost(std::string(reason.message()), {lost}, "its connection closed"));
}

absl::StatusOr<std::unique_ptr<Backend>> Make(const BackendOptions& options) {
  const std::string context = absl::StrCat("backend tcp of group '", options.group, "'");
  if (options.world_size < 1 || options.rank < 0 || options.rank >= options.world_size ||
      options.peers.size() != static_cast<size_t>(options.world_size)) {
    return absl::InvalidArgumentError(absl::StrCat(context, ": rank ", options.rank, " of ",
                                                   options.world_size, " with ", options.peers.size(),
                                                   " peers: there must be one for each rank"));
  }
  auto backend = std::make_unique<TcpBackend>(options);
  if (absl::Status status = backend->Connect(options); !status.ok()) return Annotate(status, context);
  return backend;
}

}  // namespace
}  // namespace tcp

BackendFactory TcpBackendFactory() {
  BackendFactory factory;
  factory.name = "tcp";
  factory.device = Device::Kind::kCpu;
  factory.viable = [](const BackendOptions&) { return absl::OkStatus(); };
  factory.make = tcp::Make;
  return factory;
}

}  // namespace tandem::collectives

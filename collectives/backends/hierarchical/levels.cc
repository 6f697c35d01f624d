// SPDX-License-Identifier: Apache-2.0
#include "collectives/backends/hierarchical/levels.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status.h"
#include "collectives/ranks.h"

namespace tandem::collectives::hierarchical {
namespace {

// Added time-out of a later stage of an operation, relative to the one before.
constexpr absl::Duration kStage = absl::Milliseconds(250);
// How long a rank waits for the others' fingerprints when ranks disagree.
constexpr absl::Duration kGrace = absl::Seconds(1);

// Never zero, which would mean no context.
uint64_t HashOf(const Fingerprint& fingerprint) {
  unsigned char bytes[sizeof(fingerprint)];
  std::memcpy(bytes, &fingerprint, sizeof(bytes));
  uint64_t hash = 0xcbf29ce484222325u;
  for (unsigned char byte : bytes) hash = (hash ^ byte) * 0x100000001b3u;
  return hash | 1;
}

std::string Encode(const absl::Status& status) {
  return absl::StrCat(static_cast<int>(status.code()), " ", status.message());
}

absl::Status Decode(const std::string& text, const absl::Status& otherwise) {
  const size_t space = text.find(' ');
  int code = 0;
  if (space == std::string::npos || !absl::SimpleAtoi(text.substr(0, space), &code) || code < 1 ||
      code > 16) {
    return otherwise;
  }
  return absl::Status(static_cast<absl::StatusCode>(code), text.substr(space + 1));
}

}  // namespace

Levels::Levels(const BackendOptions& options)
    : topology(options.peers), group_(options.group), rank_(options.rank), store_(options.store) {}

Levels::~Levels() {
  {
    absl::MutexLock lock(&mutex_);
    closing_ = true;
    auto quiet = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !alarmed_; };
    mutex_.Await(absl::Condition(&quiet));
  }
  // Each level's ranks leave together; the mesh comes last, because it may still serve all of them.
  inner.backend.reset();
  outer.backend.reset();
  mesh.backend.reset();
}

absl::Status Levels::Connect(const BackendOptions& options, const BackendFactory& inner_factory,
                             const BackendFactory& outer_factory) {
  const int host = topology.host_of[rank_];
  std::vector<int> all;
  for (int rank = 0; rank < options.world_size; ++rank) all.push_back(rank);
  TANDEM_RETURN_IF_ERROR(
      Make(options, inner_factory, absl::StrCat("inner/", host), topology.hosts[host], &inner));
  TANDEM_RETURN_IF_ERROR(Make(options, outer_factory, "outer", topology.leaders(), &outer));
  TANDEM_RETURN_IF_ERROR(Make(options, outer_factory, "mesh", all, &mesh));
  outer.extra_timeout = kStage;
  mesh.extra_timeout = kStage;
  SetAlarm();
  return absl::OkStatus();
}

void Levels::SetAlarm() {
  Operation alarm;
  alarm.kind = OpKind::kRecv;
  alarm.root = kAnySource;
  alarm.tag = kAlarmTag;
  mesh.backend->StartPointToPoint(alarm, [this](absl::StatusOr<int> source) {
    Call call;
    {
      absl::MutexLock lock(&mutex_);
      if (closing_ || !error_.ok()) return;
      alarmed_ = true;
      call = call_;
    }
    if (source.ok()) source = absl::InternalError(absl::StrCat("rank ", *source, " sent an alarm"));
    // Ranks that are in a call know better which operation has failed.
    if (!call.running) (void)store_->Get("reason", kStage);
    (void)Break(mesh, call, source.status());
    absl::MutexLock lock(&mutex_);
    alarmed_ = false;
  });
}

absl::Status Levels::Make(const BackendOptions& options, const BackendFactory& factory,
                          const std::string& name, const std::vector<int>& ranks, Level* level) {
  level->ranks = ranks;
  const auto self = std::find(ranks.begin(), ranks.end(), rank_);
  if (self == ranks.end() || ranks.size() == 1) return absl::OkStatus();
  level->store = std::make_unique<cluster::PrefixStore>(options.store, name);
  BackendOptions own;
  own.group = options.group;
  own.rank = static_cast<int>(self - ranks.begin());
  own.world_size = static_cast<int>(ranks.size());
  own.store = level->store.get();
  for (int rank : ranks) own.peers.push_back(options.peers[rank]);
  own.deadline = options.deadline;
  own.timeout = options.timeout / 3;  // three levels leave one after the other
  TANDEM_RETURN_IF_ERROR(factory.viable(own));
  absl::StatusOr<std::unique_ptr<Backend>> made = factory.make(own);
  if (!made.ok()) return absl::Status(made.status().code(), RenameRanks(made.status().message(), ranks));
  level->backend = *std::move(made);
  return absl::OkStatus();
}

void Levels::Begin(const Operation& operation) {
  const Fingerprint fingerprint = FingerprintOf(operation);
  context_ = HashOf(fingerprint);
  deadline_ = MonotonicNow() + operation.timeout;
  absl::MutexLock lock(&mutex_);
  call_ = {fingerprint, operation.timeout, true};
}

void Levels::End() {
  absl::MutexLock lock(&mutex_);
  call_.running = false;
}

absl::Status Levels::Run(Level* level, Operation part, bool last) {
  if (level->backend == nullptr) return absl::OkStatus();
  // On the mesh, the part is the user's operation itself.
  if (level != &mesh) part.sequence = level->sequence++;
  part.context = context_;
  part.timeout = std::max(deadline_ - MonotonicNow(), absl::Milliseconds(1)) + level->extra_timeout +
                 (last ? 2 * kStage : absl::ZeroDuration());
  const absl::Status status = level->backend->Run(part);
  if (status.ok()) return status;
  Call call;
  {
    absl::MutexLock lock(&mutex_);
    call = call_;
  }
  return Break(*level, call, status);
}

absl::Status Levels::error() const {
  absl::MutexLock lock(&mutex_);
  return error_;
}

absl::Status Levels::Break(const Level& level, const Call& call, const absl::Status& status) {
  // After an Abort on this rank every level reports it; otherwise the reason may be another rank's, which the
  // store contains.
  absl::Status known = error();
  if (known.ok()) known = FirstReason(Explain(level, call, status));
  return BreakAll(known);
}

void Levels::Abort(const absl::Status& reason) {
  const absl::Status broken = BreakAll(reason);
  if (broken == reason) {
    (void)FirstReason(Annotate(reason, absl::StrCat("rank ", rank_, " of group '", group_, "' aborted")));
  }
}

absl::Status Levels::BreakAll(const absl::Status& reason) {
  absl::Status broken;
  {
    absl::MutexLock lock(&mutex_);
    if (error_.ok()) error_ = reason;
    broken = error_;
  }
  for (Level* level : {&inner, &outer, &mesh}) {
    if (level->backend != nullptr) level->backend->Abort(broken);
  }
  return broken;
}

absl::Status Levels::FirstReason(const absl::Status& reason) {
  absl::StatusOr<std::string> first = store_->CompareSet("reason", "", Encode(reason));
  return first.ok() ? Decode(*first, reason) : reason;
}

absl::Status Levels::Explain(const Level& level, const Call& call, const absl::Status& status) {
  if (status.code() == absl::StatusCode::kInvalidArgument) {
    if (&level == &mesh)
      return status;  // it compares the users' calls, and names ranks by the group's numbers
    return FindDisagreement(level, call.fingerprint, status);
  }
  const std::string here = absl::StrCat("group '", group_, "'");
  // The text after the name of the level's own operation.
  absl::string_view text = status.message();
  const size_t found = text.find(absl::StrCat(" on ", here, ": "));
  if (found != absl::string_view::npos) text = text.substr(found + here.size() + 6);
  std::string what = RenameRanks(text, level.ranks);
  if (status.code() == absl::StatusCode::kDeadlineExceeded) {
    const size_t within = what.rfind(" within ");
    if (within != std::string::npos) what.resize(within);
    absl::StrAppend(&what, " within ", absl::FormatDuration(call.timeout));
  }
  return absl::Status(
      status.code(), absl::StrCat(call.running ? Describe(call.fingerprint) + " on " : "", here, ": ", what));
}

absl::Status Levels::FindDisagreement(const Level& level, const Fingerprint& mine,
                                      const absl::Status& status) {
  absl::string_view bytes(reinterpret_cast<const char*>(&mine), sizeof(mine));
  (void)store_->Set(absl::StrCat("call/", rank_), bytes);
  const absl::Time until = MonotonicNow() + kGrace;
  for (int rank : level.ranks) {
    if (rank == rank_) continue;
    const absl::StatusOr<std::string> text =
        store_->Get(absl::StrCat("call/", rank), std::max(until - MonotonicNow(), absl::ZeroDuration()));
    if (!text.ok() || text->size() != sizeof(Fingerprint)) continue;
    Fingerprint theirs;
    std::memcpy(&theirs, text->data(), sizeof(theirs));
    if (!Agree(mine, theirs)) {
      return absl::InvalidArgumentError(Disagreement(group_, rank_, mine, rank, theirs));
    }
  }
  return absl::InvalidArgumentError(RenameRanks(status.message(), level.ranks));
}

}  // namespace tandem::collectives::hierarchical

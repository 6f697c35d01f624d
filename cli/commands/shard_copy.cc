// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/shard_copy.h"

#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/time.h"
#include "base/logging.h"
#include "base/status.h"
#include "base/timed_wait.h"
#include "cluster/store/remote_store.h"
#include "tandem/v1/store.pb.h"

namespace tandem::cli {
namespace {

// While a shard has no primary, copy N waits this long for copy N-1 to become it.
constexpr absl::Duration kFirstCopysChance = absl::Seconds(1);
constexpr absl::Duration kAnnounceTimeout = absl::Seconds(5);
constexpr absl::Duration kAnnouncePause = absl::Milliseconds(100);

std::string RoleText(const tandem::v1::ReplicaStatus& status) {
  const std::string shard = absl::StrCat(" of shard ", status.shard());
  switch (status.role()) {
    case tandem::v1::REPLICA_ROLE_LEARNER:
      return absl::StrCat("learner", shard);
    case tandem::v1::REPLICA_ROLE_FOLLOWER:
      return absl::StrCat("follower", shard);
    case tandem::v1::REPLICA_ROLE_TAKING_OVER:
      return absl::StrCat("takes over shard ", status.shard());
    case tandem::v1::REPLICA_ROLE_PRIMARY:
      return absl::StrCat(status.serving() ? "primary" : "primary that does not serve", shard);
    case tandem::v1::REPLICA_ROLE_ENDED:
      return "ending";
    default:
      return "starting";
  }
}

}  // namespace

ShardCopy::ShardCopy(Options options)
    : options_(std::move(options)),
      first_look_(options_.member->store_channel()),
      board_(options_.member->store_channel()),
      replica_(ReplicaOptionsOf()) {}

ShardCopy::~ShardCopy() { Stop(); }

ps::ReplicaOptions ShardCopy::ReplicaOptionsOf() {
  ps::ReplicaOptions replica;
  replica.shard = static_cast<uint32_t>(options_.member->env().ps_index);
  replica.num_servers = static_cast<uint32_t>(options_.member->env().num_ps);
  replica.board = &board_;
  replica.server = options_.server;
  replica.caller = options_.member->env().caller();
  replica.min_copies = options_.min_copies;
  replica.fresh = options_.fresh;
  replica.on_change = [this](const tandem::v1::ReplicaStatus& status) { OnChange(status); };
  replica.on_end = options_.on_end;
  return replica;
}

void ShardCopy::Start(const std::string& address, std::function<void()> on_ready) {
  {
    absl::MutexLock lock(&mutex_);
    address_ = address;
  }
  announcer_ = std::thread([this, on_ready = std::move(on_ready)] { Announce(on_ready); });
}

void ShardCopy::Stop() {
  {
    absl::MutexLock lock(&mutex_);
    stopping_ = true;
  }
  first_look_.Cancel();
  // First, so that it does not start what has been stopped.
  if (announcer_.joinable()) announcer_.join();
  replica_.Stop();
}

bool ShardCopy::HasLostMemory() const {
  tandem::v1::MembersResponse members;
  const absl::Status asked = rpc::CallProto(*options_.member->store_channel(), "/tandem.v1.Store/Members",
                                            tandem::v1::MembersRequest(), &members,
                                            {.timeout = kAnnounceTimeout, .idempotent = true});
  return asked.ok() && members.lost_memory_ms() > 0;
}

absl::Status ShardCopy::RegisterAgain() {
  replica_.BoardReset();
  const auto shard = static_cast<uint32_t>(options_.member->env().ps_index);
  std::string address;
  {
    absl::MutexLock lock(&mutex_);
    if (announced_term_ == 0) return absl::OkStatus();  // it owns nothing, or is about to register
    if (serving_term_ != 0 && serving_term_ != announced_term_) return absl::OkStatus();
    address = address_;
  }
  const tandem::v1::ReplicaStatus status = replica_.Status();
  if (status.role() != tandem::v1::REPLICA_ROLE_PRIMARY) return absl::OkStatus();
  TANDEM_ASSIGN_OR_RETURN(const tandem::v1::ShardPlacement placement, board_.Read(shard, kAnnounceTimeout));
  if (placement.version() == 0) {
    return absl::UnavailableError(
        absl::StrCat("the placement of shard ", shard, " is not published again yet: ", status.failure()));
  }
  cluster::RemoteStore store(options_.member->store_channel(), kAnnounceTimeout);
  return ps::AnnouncePrimary(store, board_, shard, status.placement().term(), address, kAnnounceTimeout);
}

void ShardCopy::OnChange(const tandem::v1::ReplicaStatus& status) {
  const std::string text = RoleText(status);
  options_.member->status()->SetState(text);
  options_.member->ReportStatus();
  LogInfo(absl::StrCat(text, ", term ", status.placement().term(),
                       status.failure().empty() ? "" : absl::StrCat(": ", status.failure())));
  const bool primary = status.role() == tandem::v1::REPLICA_ROLE_PRIMARY && status.serving();
  absl::MutexLock lock(&mutex_);
  ready_ = ready_ || primary || status.role() == tandem::v1::REPLICA_ROLE_FOLLOWER;
  serving_term_ = primary ? status.placement().term() : 0;
}

void ShardCopy::Announce(const std::function<void()>& on_ready) {
  cluster::RemoteStore store(options_.member->store_channel(), kAnnounceTimeout);
  const auto work = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) {
    return stopping_ || ready_ != told_ready_ || (serving_term_ != 0 && serving_term_ != announced_term_);
  };
  std::string address;
  // Ends at once if there is a document. Without one, nobody is the primary yet.
  (void)first_look_.AwaitChange(static_cast<uint32_t>(options_.member->env().ps_index), 0,
                                kFirstCopysChance * options_.member->env().ps_copy);
  {
    absl::MutexLock lock(&mutex_);
    if (stopping_) return;
    address = address_;
  }
  // A copy that is started while the members come back to a store that has lost its memory begins nothing.
  if (options_.fresh && HasLostMemory()) replica_.BoardReset();
  replica_.Start(address);
  while (true) {
    bool ready = false;
    uint64_t term = 0;
    {
      absl::MutexLock lock(&mutex_);
      mutex_.Await(absl::Condition(&work));
      if (stopping_) return;
      ready = ready_ && !told_ready_;
      told_ready_ = ready_;
      term = serving_term_ == announced_term_ ? 0 : serving_term_;
    }
    if (ready) on_ready();
    if (term == 0) continue;
    const absl::Status told =
        ps::AnnouncePrimary(store, board_, static_cast<uint32_t>(options_.member->env().ps_index), term,
                            address, kAnnounceTimeout);
    absl::MutexLock lock(&mutex_);
    if (told.ok()) {
      announced_term_ = term;
      continue;
    }
    if (stopping_) return;
    // Clients of a running job find the primary without the store; those that start later wait.
    LogWarning(
        absl::StrCat("cannot tell the job's store that this process is the primary: ", told.message()));
    (void)AwaitFor(&mutex_, absl::Condition(&stopping_), kAnnouncePause);
  }
}

}  // namespace tandem::cli

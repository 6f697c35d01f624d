// SPDX-License-Identifier: Apache-2.0
#include "cluster/store/join.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "base/clock.h"
#include "base/status.h"
#include "cluster/membership/member_process.h"
#include "cluster/store/job_token.h"
#include "rpc/wire/bytes_stream.h"
#include "tandem/v1/store.pb.h"

namespace tandem::cluster {
namespace {

constexpr char kJoinMethod[] = "/tandem.v1.Store/Join";
// How often a process that waits for a name looks whether it is free.
constexpr absl::Duration kLookAgain = absl::Milliseconds(100);
// How often one call is repeated with another token.
constexpr int kMostJoins = 2;

v1::JoinRequest MakeJoinRequest(const std::string& member, int64_t life, bool secret_token) {
  v1::JoinRequest request;
  request.set_member(member);
  *request.mutable_process() = MemberProcess::Self().ToProto();
  request.set_life(life);
  request.set_secret_token(secret_token);
  return request;
}

absl::Duration Tenths(int64_t ms) { return absl::Trunc(absl::Milliseconds(ms), absl::Milliseconds(100)); }

absl::Status NameTaken(const std::string& member, const v1::MemberLife& holder, absl::Duration waited) {
  const std::string since =
      holder.heartbeats() > 0
          ? absl::StrCat(", was last heard ", absl::FormatDuration(Tenths(holder.silent_ms())), " ago")
          : "";
  return absl::AlreadyExistsError(absl::StrCat(
      member, " is there already: ", MemberProcess::FromProto(holder.process()).ToString(), " (life ",
      holder.life(), ") joined ", absl::FormatDuration(Tenths(holder.joined_ms())), " ago", since,
      waited >= absl::Seconds(1)
          ? absl::StrCat("; this process has waited ",
                         absl::FormatDuration(absl::Trunc(waited, absl::Milliseconds(100))), " for it to end")
          : "",
      ". End that process if this one shall take its place; otherwise start this one under another rank or "
      "index"));
}

}  // namespace

absl::StatusOr<Joined> JoinStore(rpc::Channel& channel, const JoinOptions& options) {
  const absl::Time start = MonotonicNow(), deadline = start + options.timeout;
  v1::JoinRequest request = MakeJoinRequest(options.member, options.life, options.secret_token);
  std::optional<v1::MemberLife> first;  // as the name's holder was at the first look
  while (true) {
    v1::JoinResponse response;
    const absl::Duration left = std::max(deadline - MonotonicNow(), absl::Milliseconds(1));
    const absl::Status called =
        rpc::CallProto(channel, kJoinMethod, request, &response, {.timeout = left, .idempotent = true});
    if (absl::IsUnimplemented(called)) {
      return absl::UnimplementedError(absl::StrCat("there is no Tandem store at ", channel.target(),
                                                   ", but another gRPC server (", called.message(), ")"));
    }
    // No server has answered in time, which RemoteStore calls Unavailable as well.
    if (absl::IsDeadlineExceeded(called)) return absl::UnavailableError(called.message());
    TANDEM_RETURN_IF_ERROR(called);
    if (!response.has_holder()) return Joined{.token = response.token(), .life = response.life()};
    const v1::MemberLife& holder = response.holder();
    const absl::Duration waited = MonotonicNow() - start;
    const ProcessState state = LookFor(MemberProcess::FromProto(holder.process()));
    if (state == ProcessState::kGone && request.replaces() != holder.life()) {
      request.set_replaces(holder.life());
      continue;
    }
    // A process without heartbeats can only be looked for.
    const bool alive = holder.heartbeats() == 0 ? state == ProcessState::kLives
                                                : first && first->life() == holder.life() &&
                                                      first->heartbeats() != holder.heartbeats();
    if (alive || waited + kLookAgain >= options.timeout) return NameTaken(options.member, holder, waited);
    if (!first || first->life() != holder.life()) first = holder;
    absl::SleepFor(kLookAgain);
  }
}

absl::Status EndLife(rpc::Channel& channel, absl::string_view member, absl::Duration timeout) {
  v1::EndLifeRequest request;
  request.set_member(std::string(member));
  *request.mutable_process() = MemberProcess::Self().ToProto();
  v1::EndLifeResponse response;
  const absl::Status ended = rpc::CallProto(channel, "/tandem.v1.Store/EndLife", request, &response,
                                            {.timeout = timeout, .idempotent = true});
  return absl::IsDeadlineExceeded(ended) ? absl::UnavailableError(ended.message()) : ended;
}

namespace {

// A gRPC channel that joins when it must.
class StoreChannel final : public rpc::Channel {
 public:
  StoreChannel(std::shared_ptr<rpc::Channel> channel, rpc::Caller caller, bool secret_token)
      : target_(channel->target()),
        transport_(channel->transport()),
        channel_(std::move(channel)),
        caller_(std::move(caller)),
        secret_token_(secret_token) {}

  ~StoreChannel() override {
    std::vector<std::shared_ptr<rpc::Channel>> channels;
    {
      absl::MutexLock lock(&mutex_);
      closing_ = true;
      mutex_.Await(absl::Condition(
          +[](int* starting) { return *starting == 0; }, &starting_));
      channels = std::move(earlier_);
      channels.push_back(std::move(channel_));
    }
    channels.clear();  // waits for their calls
  }

  void CallAsync(absl::string_view method, Bytes request, const rpc::CallOptions& options,
                 Done done) override {
    auto call = std::make_shared<StoreCall>();
    call->method = std::string(method);
    call->request = std::move(request);
    call->options = options;
    call->deadline = MonotonicNow() + options.timeout;
    call->done = std::move(done);
    Start(std::move(call));
  }

  absl::string_view transport() const override { return transport_; }
  const std::string& target() const override { return target_; }

 private:
  struct StoreCall {
    std::string method;
    Bytes request;
    rpc::CallOptions options;
    absl::Time deadline;
    Done done;
    int joins = 0;  // that this call has caused
    absl::Status refusal;
  };
  using CallPtr = std::shared_ptr<StoreCall>;

  // Starts a call on the present channel. The destructor waits for this function, so the channel outlives it.
  void Begin(const std::shared_ptr<rpc::Channel>& channel, absl::string_view method, Bytes request,
             const rpc::CallOptions& options, Done done) {
    channel->CallAsync(method, std::move(request), options, std::move(done));
    absl::MutexLock lock(&mutex_);
    --starting_;
  }

  void Start(CallPtr call) {
    std::shared_ptr<rpc::Channel> channel;
    size_t generation = 0;
    {
      absl::MutexLock lock(&mutex_);
      if (!closing_) {
        channel = channel_;
        generation = earlier_.size();
        ++starting_;
      }
    }
    if (channel == nullptr) return std::move(call->done)(absl::CancelledError("the channel was closed"));
    rpc::CallOptions options = call->options;
    options.timeout = std::max(call->deadline - MonotonicNow(), absl::ZeroDuration());
    Begin(channel, call->method, call->request, options,
          [this, call, generation](absl::StatusOr<Bytes> response) {
            if (absl::IsPermissionDenied(response.status()) && call->joins < kMostJoins) {
              ++call->joins;
              call->refusal = response.status();
              return JoinFor(call, generation);
            }
            std::move(call->done)(std::move(response));
          });
  }

  // Repeats `call`, which the store has refused on the channel number `generation`, when there is a later
  // channel. Joins for that unless a join is under way.
  void JoinFor(CallPtr call, size_t generation) {
    enum class Next { kFail, kRepeat, kWait, kJoinMethod };
    Next next = Next::kWait;
    std::shared_ptr<rpc::Channel> channel;
    v1::JoinRequest request;
    {
      absl::MutexLock lock(&mutex_);
      if (closing_) {
        next = Next::kFail;
      } else if (generation != earlier_.size()) {
        next = Next::kRepeat;
      } else {
        waiting_.push_back(call);
        if (!joining_) {
          next = Next::kJoinMethod;
          joining_ = true;
          channel = channel_;
          ++starting_;
          request = MakeJoinRequest(caller_.life > 0 ? caller_.member : "", caller_.life, secret_token_);
        }
      }
    }
    if (next == Next::kFail) return std::move(call->done)(call->refusal);
    if (next == Next::kRepeat) return Start(std::move(call));
    if (next == Next::kWait) return;
    rpc::CallOptions options;
    options.timeout = std::max(call->deadline - MonotonicNow(), absl::ZeroDuration());
    options.idempotent = true;
    Begin(channel, kJoinMethod, Bytes(request.SerializeAsString()), options,
          [this](absl::StatusOr<Bytes> response) { OnJoined(std::move(response)); });
  }

  void OnJoined(absl::StatusOr<Bytes> response) {
    v1::JoinResponse joined;
    absl::Status status = response.status();
    if (status.ok()) {
      rpc::BytesInputStream stream(*response);
      if (!joined.ParseFromZeroCopyStream(&stream)) {
        status = absl::InternalError(
            absl::StrCat(kJoinMethod, " at ", target_, ": the answer is no JoinResponse"));
      } else if (joined.has_holder()) {
        status = NameTaken("the name of this process", joined.holder(), absl::ZeroDuration());
      }
    }
    std::vector<CallPtr> calls;
    {
      absl::MutexLock lock(&mutex_);
      joining_ = false;
      calls.swap(waiting_);
      // Otherwise the store, which is new, has taken this process's token over.
      if (status.ok() && !closing_ && joined.token() != caller_.token) {
        rpc::Caller caller = caller_;
        caller.token = joined.token();
        absl::StatusOr<std::unique_ptr<rpc::Channel>> channel = rpc::ConnectGrpc(target_, {.caller = caller});
        status = channel.status();
        if (channel.ok()) {
          // Calls that wait go on over the earlier channel.
          earlier_.push_back(std::exchange(channel_, *std::move(channel)));
          caller_ = std::move(caller);
          secret_token_ = false;
        }
      }
    }
    for (CallPtr& call : calls) {
      if (status.ok()) {
        Start(std::move(call));
      } else {
        // A caller that has no token wants to know which method needs it.
        std::move(call->done)(absl::IsPermissionDenied(status) ? call->refusal : status);
      }
    }
  }

  const std::string target_, transport_;
  absl::Mutex mutex_;
  bool closing_ ABSL_GUARDED_BY(mutex_) = false;
  int starting_ ABSL_GUARDED_BY(mutex_) = 0;  // calls of Begin under way
  bool joining_ ABSL_GUARDED_BY(mutex_) = false;
  std::vector<CallPtr> waiting_ ABSL_GUARDED_BY(mutex_);  // for the join under way
  std::shared_ptr<rpc::Channel> channel_ ABSL_GUARDED_BY(mutex_);
  // One for each time that the store had another token.
  std::vector<std::shared_ptr<rpc::Channel>> earlier_ ABSL_GUARDED_BY(mutex_);
  rpc::Caller caller_ ABSL_GUARDED_BY(mutex_);
  bool secret_token_ ABSL_GUARDED_BY(mutex_);
};

}  // namespace

absl::StatusOr<std::unique_ptr<rpc::Channel>> ConnectStore(const std::string& address, rpc::Caller caller,
                                                           bool secret_token) {
  if (caller.token.empty()) {
    TANDEM_ASSIGN_OR_RETURN(caller.token, JobTokenFromEnv());
    secret_token = !caller.token.empty();
  }
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<rpc::Channel> channel,
                          rpc::ConnectGrpc(address, {.caller = caller}));
  return std::make_unique<StoreChannel>(std::move(channel), std::move(caller), secret_token);
}

absl::StatusOr<std::unique_ptr<rpc::Channel>> ConnectStore(const std::string& address, rpc::Caller caller) {
  const bool secret = !caller.token.empty();
  return ConnectStore(address, std::move(caller), secret);
}

}  // namespace tandem::cluster

// SPDX-License-Identifier: Apache-2.0
#include "cluster/store/etcd/etcd_channel.h"

#include <algorithm>
#include <deque>
#include <functional>
#include <map>
#include <set>
#include <stop_token>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "absl/types/span.h"
#include "base/clock.h"
#include "base/status.h"
#include "base/timed_wait.h"
#include "cluster/membership/limits.h"
#include "cluster/membership/methods.h"
#include "cluster/store/etcd/etcd_store.h"
#include "cluster/store/key_owners.h"
#include "cluster/store/store_membership.h"
#include "rpc/wire/bytes_stream.h"
#include "tandem/v1/store.pb.h"

namespace tandem::cluster {
namespace {

constexpr absl::Duration kOpenTimeout = absl::Seconds(10);
// A job's keys must outlive a time in which none of its processes reaches etcd.
constexpr absl::Duration kKeysLease = absl::Hours(24);
// This bounds one call for the membership. It is short, so that a heartbeat learns in time that etcd does not
// answer.
constexpr absl::Duration kMembershipCall = absl::Seconds(3);
constexpr absl::Duration kRepeatPause = absl::Milliseconds(100);
constexpr char kKeyIdKey[] = "key";

// Returns the options of a part of the store at `url`.
absl::StatusOr<EtcdOptions> OptionsFor(const std::string& url, absl::string_view part,
                                       absl::Duration call_timeout) {
  TANDEM_ASSIGN_OR_RETURN(EtcdOptions options, ParseEtcdUrl(url));
  if (!absl::StrContains(url, "lease=")) options.lease = kKeysLease;
  options.call_timeout = call_timeout;
  options.open_timeout = kOpenTimeout;
  absl::StrAppend(&options.prefix, "/", part);
  return options;
}

// Both parts of a job's store.
class EtcdJob {
 public:
  static absl::StatusOr<std::unique_ptr<EtcdJob>> Open(EtcdOptions keys, EtcdOptions members) {
    const bool read_only = members.read_only;
    auto job = std::make_unique<EtcdJob>();
    TANDEM_ASSIGN_OR_RETURN(job->keys_, EtcdStore::Open(std::move(keys)));
    TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<EtcdStore> store, EtcdStore::Open(std::move(members)));
    job->members_ = store.get();
    TANDEM_ASSIGN_OR_RETURN(job->membership_, StoreMembership::Open(std::move(store), "", read_only));
    return job;
  }
  EtcdStore* keys() { return keys_.get(); }
  StoreMembership* membership() { return membership_.get(); }
  // Returns PermissionDenied, which names both keys, if the first process of the job had another key than the
  // one of `id`. Servers of the job would refuse the calls of this process later.
  absl::Status CheckKey(const std::string& id) {
    TANDEM_ASSIGN_OR_RETURN(std::string first, members_->GetIfPresent(kKeyIdKey, kMembershipCall));
    if (first.empty()) {
      TANDEM_ASSIGN_OR_RETURN(first, members_->CompareSet(kKeyIdKey, "", id));
    }
    if (first == id) return absl::OkStatus();
    return absl::PermissionDeniedError(
        absl::StrCat("the processes of the job have key ", first, ", and this one has key ", id,
                     ": give it the job's key, by TANDEM_KEY_FILE or TANDEM_KEY"));
  }
  // Ends calls that are under way, and later ones, with Cancelled.
  void Stop() {
    keys_->Stop();
    members_->Stop();
  }
  // Changes of keys fail from now on when `process` does not have the name any more.
  void Fence(const std::string& member, int64_t life, const MemberProcess& process) {
    keys_->SetFence(members_->EtcdKey(StoreMembership::FenceKey(member)),
                    StoreMembership::FenceValue(process, life));
  }

 private:
  std::unique_ptr<EtcdStore> keys_;
  EtcdStore* members_ = nullptr;  // owned by membership_
  std::unique_ptr<StoreMembership> membership_;
};

absl::Duration Milliseconds(int64_t ms) { return absl::Milliseconds(std::max<int64_t>(0, ms)); }

class EtcdChannel final : public rpc::Channel {
 public:
  EtcdChannel(EtcdOptions keys, EtcdOptions members, std::string target, rpc::Caller caller)
      : keys_options_(std::move(keys)),
        members_options_(std::move(members)),
        target_(std::move(target)),
        methods_(MakeMethods()),
        caller_(std::move(caller)),
        timer_([this] { RunTimer(); }) {}

  ~EtcdChannel() override {
    std::set<CallPtr> open;
    EtcdJob* job = nullptr;
    {
      absl::MutexLock lock(&mutex_);
      stopping_ = true;
      open = open_;
      job = job_.get();
    }
    if (job != nullptr) job->Stop();
    for (const CallPtr& call : open) Finish(call, absl::CancelledError("the channel was closed"));
    timer_.join();
    for (std::thread& worker : workers_) worker.join();
  }

  void CallAsync(absl::string_view method, Bytes request, const rpc::CallOptions& options,
                 Done done) override {
    auto call = std::make_shared<OpenCall>();
    call->method = std::string(method);
    call->request = std::move(request);
    call->deadline = MonotonicNow() + options.timeout;
    call->idempotent = options.idempotent;
    call->done = std::move(done);
    {
      absl::MutexLock lock(&mutex_);
      open_.insert(call);
      if (!stopping_) {
        queue_.push_back(call);
        timer_changed_ = true;
        if (idle_ < queue_.size()) workers_.emplace_back([this] { Work(); });
      }
    }
    if (options.cancel.stop_possible()) {
      // Runs now if the stop was requested before.
      auto cancel = std::make_unique<Cancel>(options.cancel, [this, weak = std::weak_ptr<OpenCall>(call)] {
        if (const CallPtr same = weak.lock()) {
          Finish(same, absl::CancelledError(absl::StrCat(same->method, " was cancelled")));
        }
      });
      absl::MutexLock lock(&mutex_);
      if (open_.contains(call)) call->cancel = std::move(cancel);
    }
  }

  absl::string_view transport() const override { return "etcd"; }
  const std::string& target() const override { return target_; }

 private:
  using Cancel = std::stop_callback<std::function<void()>>;
  struct OpenCall {
    std::string method;
    Bytes request;
    absl::Time deadline;
    bool idempotent = false;
    Done done;
    std::unique_ptr<Cancel> cancel;
  };
  using CallPtr = std::shared_ptr<OpenCall>;
  using Handler = std::function<absl::StatusOr<Bytes>(EtcdJob& job, const Bytes& request)>;
  struct Method {
    Handler handler;
    bool repeats;  // a call that found no etcd may be made again
  };

  // Runs the call's `done` unless that was done before.
  void Finish(const CallPtr& call, absl::StatusOr<Bytes> response) {
    {
      absl::MutexLock lock(&mutex_);
      if (open_.erase(call) == 0) return;
    }
    std::move(call->done)(std::move(response));
  }

  void Work() {
    const auto work = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return stopping_ || !queue_.empty(); };
    while (true) {
      CallPtr call;
      {
        absl::MutexLock lock(&mutex_);
        ++idle_;
        mutex_.Await(absl::Condition(&work));
        --idle_;
        if (stopping_) return;
        call = std::move(queue_.front());
        queue_.pop_front();
      }
      if (IsOpen(call)) Finish(call, Answer(call));
    }
  }

  bool IsOpen(const CallPtr& call) {
    absl::MutexLock lock(&mutex_);
    return open_.contains(call);
  }

  absl::StatusOr<Bytes> Answer(const CallPtr& call) {
    const auto method = methods_.find(absl::StripPrefix(call->method, "/tandem.v1.Store/"));
    if (method == methods_.end()) {
      return absl::UnimplementedError(absl::StrCat("a store in etcd has no method ", call->method));
    }
    while (true) {
      absl::StatusOr<EtcdJob*> job = Job();
      const bool again = call->idempotent && (!job.ok() || method->second.repeats);
      const absl::StatusOr<Bytes> response =
          job.ok() ? method->second.handler(**job, call->request) : absl::StatusOr<Bytes>(job.status());
      if (!absl::IsUnavailable(response.status()) || !again) return response;
      absl::MutexLock lock(&mutex_);
      const auto over = [&]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return !open_.contains(call); };
      if (AwaitUntil(&mutex_, absl::Condition(&over), MonotonicNow() + kRepeatPause)) return response;
    }
  }

  // Opens the job's store with the first call. Later calls wait for that.
  absl::StatusOr<EtcdJob*> Job() {
    absl::MutexLock open(&open_mutex_);
    if (job_ == nullptr) {
      TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<EtcdJob> job, EtcdJob::Open(keys_options_, members_options_));
      if (!keys_options_.read_only) TANDEM_RETURN_IF_ERROR(job->CheckKey(caller().key_id));
      absl::MutexLock lock(&mutex_);
      if (stopping_) return absl::CancelledError("the channel was closed");
      job_ = std::move(job);
      if (caller_.life > 0) job_->Fence(caller_.member, caller_.life, MemberProcess::Self());
    }
    return job_.get();
  }

  void RunTimer() {
    const auto woken = [this]() ABSL_SHARED_LOCKS_REQUIRED(mutex_) { return stopping_ || timer_changed_; };
    while (true) {
      std::vector<CallPtr> late;
      {
        absl::MutexLock lock(&mutex_);
        absl::Time next = absl::InfiniteFuture();
        for (const CallPtr& call : open_) next = std::min(next, call->deadline);
        AwaitUntil(&mutex_, absl::Condition(&woken), next);
        if (stopping_) return;
        timer_changed_ = false;
        const absl::Time now = MonotonicNow();
        for (const CallPtr& call : open_) {
          if (call->deadline <= now) late.push_back(call);
        }
      }
      for (const CallPtr& call : late) {
        Finish(call, absl::DeadlineExceededError(
                         absl::StrCat(call->method, " at ", target_, " was not answered in time")));
      }
    }
  }

  rpc::Caller caller() {
    absl::MutexLock lock(&mutex_);
    return caller_;
  }

  // Makes a method of `handle(job, request, &response)`.
  template <typename Request, typename Response>
  static Handler Typed(std::function<absl::Status(EtcdJob&, const Request&, Response*)> handle) {
    return [handle = std::move(handle)](EtcdJob& job, const Bytes& bytes) -> absl::StatusOr<Bytes> {
      Request request;
      rpc::BytesInputStream stream(bytes);
      if (!request.ParseFromZeroCopyStream(&stream)) {
        return absl::InvalidArgumentError("the request cannot be parsed");
      }
      Response response;
      TANDEM_RETURN_IF_ERROR(handle(job, request, &response));
      return Bytes(response.SerializeAsString());
    };
  }
  // Makes a method that changes keys, which only their owners do. A process that was replaced learns by which
  // other one.
  template <typename Request, typename Response>
  Handler Change(std::function<absl::Status(EtcdStore&, const Request&, Response*)> handle) {
    return Typed<Request, Response>(
        [this, handle = std::move(handle)](EtcdJob& job, const Request& request, Response* response) {
          const rpc::Caller self = caller();
          if (!self.member.empty()) TANDEM_RETURN_IF_ERROR(CheckJoined(self.member, self.life));
          TANDEM_RETURN_IF_ERROR(CheckKeyOwners(request, self));
          absl::Status status = handle(*job.keys(), request, response);
          if (!absl::IsAlreadyExists(status)) return status;
          const absl::Status replaced = job.membership()->AdmitLife(self.member, self.life);
          return replaced.ok() ? status : replaced;
        });
  }

  absl::Status Admit(EtcdJob& job) {
    const rpc::Caller self = caller();
    return job.membership()->AdmitLife(self.member, self.life);
  }

  absl::Status Join(EtcdJob& job, const v1::JoinRequest& request, v1::JoinResponse* response) {
    TANDEM_ASSIGN_OR_RETURN(*response, JoinMember(job.membership(), request));
    if (response->has_holder()) return absl::OkStatus();
    job.Fence(request.member(), response->life(), MemberProcess::FromProto(request.process()));
    absl::MutexLock lock(&mutex_);
    caller_.member = request.member();
    caller_.life = response->life();
    return absl::OkStatus();
  }

  std::map<std::string, Method, std::less<>> MakeMethods();

  const EtcdOptions keys_options_, members_options_;
  const std::string target_;
  const std::map<std::string, Method, std::less<>> methods_;

  absl::Mutex open_mutex_ ABSL_ACQUIRED_BEFORE(mutex_);
  absl::Mutex mutex_;
  rpc::Caller caller_ ABSL_GUARDED_BY(mutex_);
  std::unique_ptr<EtcdJob> job_;  // set once, under both locks
  bool stopping_ ABSL_GUARDED_BY(mutex_) = false;
  bool timer_changed_ ABSL_GUARDED_BY(mutex_) = false;
  std::set<CallPtr> open_ ABSL_GUARDED_BY(mutex_);
  std::deque<CallPtr> queue_ ABSL_GUARDED_BY(mutex_);
  size_t idle_ ABSL_GUARDED_BY(mutex_) = 0;
  std::vector<std::thread> workers_ ABSL_GUARDED_BY(mutex_);  // each makes one call at a time
  std::thread timer_;
};

template <typename Result, typename Set>
absl::Status Into(absl::StatusOr<Result> result, Set set) {
  if (result.ok()) set(*std::move(result));
  return result.status();
}

absl::Span<const std::string> Span(const std::vector<std::string>& keys) { return keys; }

template <typename Repeated>
std::vector<std::string> Strings(const Repeated& repeated) {
  return {repeated.begin(), repeated.end()};
}

// Adds those of `keys` that do not exist to the response of a wait that is over; OK if it is another error.
template <typename Response>
absl::Status NameMissing(EtcdStore& store, absl::Status waited, const std::vector<std::string>& keys,
                         Response* response) {
  if (!absl::IsDeadlineExceeded(waited)) return waited;
  for (const std::string& key : keys) {
    TANDEM_ASSIGN_OR_RETURN(const bool there, store.Check({key}));
    if (!there) response->add_missing(key);
  }
  // A key that was set just now is named as well: the wait had ended.
  if (response->missing_size() == 0) response->add_missing(keys[0]);
  return absl::OkStatus();
}

std::map<std::string, EtcdChannel::Method, std::less<>> EtcdChannel::MakeMethods() {
  std::map<std::string, Method, std::less<>> all;
  const auto add = [&all](const char* name, Handler handler, bool repeats = false) {
    all[name] = {std::move(handler), repeats};
  };
  add("Set", Change<v1::StoreSetRequest, v1::StoreSetResponse>(
                 [](EtcdStore& store, const auto& r, auto*) { return store.Set(r.key(), r.value()); }));
  add("Add",
      Change<v1::StoreAddRequest, v1::StoreAddResponse>([](EtcdStore& store, const auto& r, auto* out) {
        return Into(store.Add(r.key(), r.delta()), [out](int64_t sum) { out->set_value(sum); });
      }));
  add("CompareSet", Change<v1::StoreCompareSetRequest, v1::StoreCompareSetResponse>(
                        [](EtcdStore& store, const auto& r, auto* out) {
                          return Into(store.CompareSet(r.key(), r.expected(), r.desired()),
                                      [out](std::string now) { out->set_value(std::move(now)); });
                        }));
  add("Append",
      Change<v1::StoreAppendRequest, v1::StoreAppendResponse>([](EtcdStore& store, const auto& r, auto* out) {
        return Into(store.Append(r.key(), r.value()), [out](int64_t length) { out->set_length(length); });
      }));
  add("MultiSet",
      Change<v1::StoreMultiSetRequest, v1::StoreMultiSetResponse>([](EtcdStore& store, const auto& r, auto*) {
        return store.MultiSet(Span(Strings(r.keys())), Span(Strings(r.values())));
      }));
  add("Delete",
      Change<v1::StoreDeleteRequest, v1::StoreDeleteResponse>([](EtcdStore& store, const auto& r, auto* out) {
        return Into(store.Delete(r.key()), [out](bool existed) { out->set_existed(existed); });
      }));
  add("Push", Change<v1::StorePushRequest, v1::StorePushResponse>(
                  [](EtcdStore& store, const auto& r, auto*) { return store.Push(r.queue(), r.value()); }));
  add("Pop",
      Change<v1::StorePopRequest, v1::StorePopResponse>([](EtcdStore& store, const auto& r, auto* out) {
        absl::StatusOr<std::string> item = store.Pop(r.queue(), Milliseconds(r.timeout_ms()));
        out->set_empty(absl::IsDeadlineExceeded(item.status()));
        if (item.ok()) out->set_value(*std::move(item));
        return out->empty() ? absl::OkStatus() : item.status();
      }));
  add("Get", Typed<v1::StoreGetRequest, v1::StoreGetResponse>([](EtcdJob& job, const auto& r, auto* out) {
        absl::StatusOr<std::string> value = job.keys()->Get(r.key(), Milliseconds(r.timeout_ms()));
        out->set_missing(absl::IsDeadlineExceeded(value.status()));
        if (value.ok()) out->set_value(*std::move(value));
        return out->missing() ? absl::OkStatus() : value.status();
      }),
      /*repeats=*/true);
  add("Wait", Typed<v1::StoreWaitRequest, v1::StoreWaitResponse>([](EtcdJob& job, const auto& r, auto* out) {
        const std::vector<std::string> keys = Strings(r.keys());
        return NameMissing(*job.keys(), job.keys()->Wait(keys, Milliseconds(r.timeout_ms())), keys, out);
      }),
      /*repeats=*/true);
  add("MultiGet",
      Typed<v1::StoreMultiGetRequest, v1::StoreMultiGetResponse>([](EtcdJob& job, const auto& r, auto* out) {
        const std::vector<std::string> keys = Strings(r.keys());
        absl::StatusOr<std::vector<std::string>> values =
            job.keys()->MultiGet(keys, Milliseconds(r.timeout_ms()));
        if (!values.ok()) return NameMissing(*job.keys(), values.status(), keys, out);
        for (std::string& value : *values) out->add_values(std::move(value));
        return absl::OkStatus();
      }),
      /*repeats=*/true);
  add("Check",
      Typed<v1::StoreCheckRequest, v1::StoreCheckResponse>([](EtcdJob& job, const auto& r, auto* out) {
        return Into(job.keys()->Check(Span(Strings(r.keys()))),
                    [out](bool all_there) { out->set_all(all_there); });
      }),
      /*repeats=*/true);
  add("List", Typed<v1::StoreListRequest, v1::StoreListResponse>([](EtcdJob& job, const auto& r, auto* out) {
        return Into(job.keys()->List(r.prefix()), [out](std::vector<std::string> keys) {
          for (std::string& key : keys) out->add_keys(std::move(key));
        });
      }),
      /*repeats=*/true);
  add("NumKeys",
      Typed<v1::StoreNumKeysRequest, v1::StoreNumKeysResponse>([](EtcdJob& job, const auto&, auto* out) {
        return Into(job.keys()->NumKeys(), [out](int64_t count) { out->set_count(count); });
      }),
      /*repeats=*/true);
  add("Length",
      Typed<v1::StoreLengthRequest, v1::StoreLengthResponse>([](EtcdJob& job, const auto& r, auto* out) {
        return Into(job.keys()->Length(r.queue()), [out](int64_t items) { out->set_length(items); });
      }),
      /*repeats=*/true);
  // Calls for the membership may be made twice without harm.
  add("Join", Typed<v1::JoinRequest, v1::JoinResponse>([this](EtcdJob& job, const auto& r, auto* out) {
        return Join(job, r, out);
      }),
      /*repeats=*/true);
  add("EndLife", Typed<v1::EndLifeRequest, v1::EndLifeResponse>([this](EtcdJob& job, const auto& r, auto*) {
        TANDEM_RETURN_IF_ERROR(Admit(job));
        return EndMemberLife(job.membership(), r).status();
      }),
      /*repeats=*/true);
  add("Heartbeat",
      Typed<v1::HeartbeatRequest, v1::HeartbeatResponse>([this](EtcdJob& job, const auto& r, auto* out) {
        return Into(HearMember(job.membership(), r, caller()),
                    [out](v1::HeartbeatResponse state) { *out = std::move(state); });
      }),
      /*repeats=*/true);
  add("Members", Typed<v1::MembersRequest, v1::MembersResponse>([](EtcdJob& job, const auto&, auto* out) {
        return Into(ListMembers(job.membership()),
                    [out](v1::MembersResponse members) { *out = std::move(members); });
      }),
      /*repeats=*/true);
  add("EndJob", Typed<v1::EndJobRequest, v1::EndJobResponse>([this](EtcdJob& job, const auto& r, auto*) {
        TANDEM_RETURN_IF_ERROR(Admit(job));
        return EndJob(job.membership(), r).status();
      }),
      /*repeats=*/true);
  return all;
}

}  // namespace

bool IsEtcdAddress(absl::string_view address) {
  return absl::StartsWith(address, "etcd://") || absl::StartsWith(address, "etcds://");
}

absl::StatusOr<std::unique_ptr<rpc::Channel>> ConnectEtcd(const std::string& url, rpc::Caller caller,
                                                          bool read_only) {
  TANDEM_ASSIGN_OR_RETURN(EtcdOptions keys, OptionsFor(url, "job", absl::Seconds(30)));
  TANDEM_ASSIGN_OR_RETURN(EtcdOptions members, OptionsFor(url, "members", kMembershipCall));
  keys.read_only = members.read_only = read_only;
  // Calls repeat the opening until their own deadline, and the destructor waits for it.
  keys.open_timeout = members.open_timeout = kMembershipCall;
  return std::make_unique<EtcdChannel>(std::move(keys), std::move(members), url, std::move(caller));
}

absl::StatusOr<std::unique_ptr<Membership>> OpenEtcdMembership(const std::string& url,
                                                               const std::string& name) {
  TANDEM_ASSIGN_OR_RETURN(EtcdOptions options, OptionsFor(url, "members", kMembershipCall));
  TANDEM_ASSIGN_OR_RETURN(std::unique_ptr<EtcdStore> store, EtcdStore::Open(std::move(options)));
  return StoreMembership::Open(std::move(store), name);
}

}  // namespace tandem::cluster

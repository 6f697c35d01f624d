// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_PS_CLIENT_ROUTE_FAKE_COPIES_H_
#define TANDEM_TESTS_PS_CLIENT_ROUTE_FAKE_COPIES_H_

// Copies of a shard in the test's own process, whose deaths, stops and documents the test decides.

#include <atomic>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "base/clock.h"
#include "base/status.h"
#include "ps/client/route/routed_channel.h"
#include "rpc/transport/loopback.h"
#include "rpc/transport/retrying_channel.h"
#include "rpc/transport/timer_queue.h"
#include "tests/testing/processes/processes.h"

namespace tandem::ps {

// Thread-safe. Channels must be destroyed before it.
class FakeCopies {
 public:
  static constexpr char kEcho[] = "/test.Shard/Echo";
  static constexpr char kRead[] = "/test.Shard/Read";  // as Echo, which followers answer, too

  // The copies are at "copy-0", "copy-1", ...; the first one is the primary of version 1, the others are in
  // sync.
  explicit FakeCopies(int copies) {
    absl::MutexLock lock(&mutex_);
    for (int i = 0; i < copies; ++i) {
      copies_.push_back(std::make_unique<Copy>());
      Copy& copy = *copies_.back();
      copy.address = absl::StrCat("copy-", i);
      copy.id = absl::StrCat("id-", i);
      copy.services = std::make_shared<const std::vector<rpc::Service>>(
          std::vector<rpc::Service>{{"test.Shard",
                                     {{"Echo", rpc::Right::kRead,
                                       [this, i](std::shared_ptr<rpc::ServerCall> call) {
                                         OnEcho(i, {call, false});
                                       }},
                                      {"Read", rpc::Right::kRead,
                                       [this, i](std::shared_ptr<rpc::ServerCall> call) {
                                         OnEcho(i, {call, true});
                                       }}}},
                                    {"tandem.v1.Failover",
                                     {{"GetPlacement", rpc::Right::kObserve,
                                       [this, i](std::shared_ptr<rpc::ServerCall> call) {
                                         OnGetPlacement(i, call);
                                       }}}}});
    }
    Name(0);
    for (auto& copy : copies_) copy->known = document_;
  }
  ~FakeCopies() { timers_.Stop(); }

  RoutedChannelOptions Options() {
    RoutedChannelOptions options;
    options.shard = 3;
    options.addresses = {"copy-0"};
    options.open_transport =
        [this](const std::string& address) -> absl::StatusOr<std::unique_ptr<rpc::Transport>> {
      ++opened_;
      return std::make_unique<Counted>(rpc::MakeLoopbackTransport(Find(address).services, Injector(address)),
                                       this);
    };
    options.open_questions =
        [this](const std::string& address) -> absl::StatusOr<std::unique_ptr<rpc::Channel>> {
      return rpc::ConnectLoopback(Find(address).services, Injector(address));
    };
    return options;
  }

  // The copy's process is gone: calls in flight fail, and later ones are refused.
  void Kill(int i) {
    std::vector<std::shared_ptr<rpc::ServerCall>> lost;
    {
      absl::MutexLock lock(&mutex_);
      Copy& copy = *copies_[static_cast<size_t>(i)];
      copy.state = State::kDead;
      for (Held& one : copy.held) lost.push_back(std::move(one.call));
      copy.held.clear();
      for (Waiting& one : copy.waiting) lost.push_back(one.call);
      copy.waiting.clear();
    }
    for (auto& call : lost) call->Finish(absl::UnavailableError("the connection was lost"));
  }
  // The copy's process answers nothing from now on, and keeps its connections.
  void Stop(int i) {
    absl::MutexLock lock(&mutex_);
    copies_[static_cast<size_t>(i)]->state = State::kStopped;
  }
  // The stopped process goes on with what it knew.
  void Continue(int i) {
    std::vector<Held> calls;
    {
      absl::MutexLock lock(&mutex_);
      Copy& copy = *copies_[static_cast<size_t>(i)];
      copy.state = State::kUp;
      if (!copy.holds) calls.swap(copy.held);
    }
    for (Held& call : calls) OnEcho(i, std::move(call));
  }
  // Calls of Echo stay in flight until the copy is killed or Hold(i, false).
  void Hold(int i, bool holds) {
    std::vector<Held> calls;
    {
      absl::MutexLock lock(&mutex_);
      copies_[static_cast<size_t>(i)]->holds = holds;
      if (!holds) calls.swap(copies_[static_cast<size_t>(i)]->held);
    }
    for (Held& call : calls) OnEcho(i, std::move(call));
  }
  // The copy answers Echo with `status` unless it is OK, and says that it does not serve.
  void Refuse(int i, absl::Status status) {
    absl::MutexLock lock(&mutex_);
    copies_[static_cast<size_t>(i)]->refusal = std::move(status);
  }
  // A new document names copy `i`. The copies that are up know it at once if `tell`.
  void Promote(int i, bool tell = true) {
    {
      absl::MutexLock lock(&mutex_);
      Name(i);
    }
    if (tell) Tell();
  }
  // A new document names the same primary, and copy `follower` as the only one in sync; -1: none is.
  void SetInSync(int follower) {
    {
      absl::MutexLock lock(&mutex_);
      document_.set_version(document_.version() + 1);
      document_.clear_in_sync();
      if (follower >= 0) {
        const Copy& copy = *copies_[static_cast<size_t>(follower)];
        v1::Replica& replica = *document_.add_in_sync();
        replica.set_id(copy.id);
        replica.set_address(copy.address);
      }
    }
    Tell();
  }
  // Blocks until a question is open at the copy that waits for a change of the newest document.
  bool AwaitQuestion(int i) {
    absl::MutexLock lock(&mutex_);
    const auto asked = [&] { return !copies_[static_cast<size_t>(i)]->waiting.empty(); };
    return mutex_.AwaitWithTimeout(absl::Condition(&asked), testing::kTestTimeout);
  }

  v1::ShardPlacement document() const {
    absl::MutexLock lock(&mutex_);
    return document_;
  }
  // Blocks until `count` calls of Echo are held at the copy.
  bool AwaitHeld(int i, size_t count) {
    absl::MutexLock lock(&mutex_);
    const auto held = [&] { return copies_[static_cast<size_t>(i)]->held.size() >= count; };
    return mutex_.AwaitWithTimeout(absl::Condition(&held), testing::kTestTimeout);
  }
  // The requests that the copy has executed.
  std::vector<std::string> executed(int i) const {
    absl::MutexLock lock(&mutex_);
    return copies_[static_cast<size_t>(i)]->executed;
  }
  // The calls that have reached the copy, executed or not.
  int reached(int i) const {
    absl::MutexLock lock(&mutex_);
    return copies_[static_cast<size_t>(i)]->reached;
  }
  // Blocks until a call of Echo has reached the copy.
  bool AwaitReached(int i) {
    absl::MutexLock lock(&mutex_);
    const auto reached = [&] { return copies_[static_cast<size_t>(i)]->reached > 0; };
    return mutex_.AwaitWithTimeout(absl::Condition(&reached), testing::kTestTimeout);
  }
  // Blocks until at most `count` connections to primaries are open.
  bool AwaitOpen(int count) {
    absl::MutexLock lock(&mutex_);
    const auto closed = [&] { return open_ <= count; };
    return mutex_.AwaitWithTimeout(absl::Condition(&closed), testing::kTestTimeout);
  }
  // The connections to primaries that were opened.
  int opened() const { return opened_; }

 private:
  enum class State { kUp, kStopped, kDead };
  // A call of Echo or Read.
  struct Held {
    std::shared_ptr<rpc::ServerCall> call;
    bool reads = false;
  };
  struct Waiting {
    uint64_t number;
    std::shared_ptr<rpc::ServerCall> call;
  };
  struct Copy {
    std::string address, id;
    std::shared_ptr<const std::vector<rpc::Service>> services;
    // Guarded by mutex_:
    State state = State::kUp;
    bool holds = false;
    absl::Status refusal;
    v1::ShardPlacement known;
    std::vector<Held> held;
    std::vector<Waiting> waiting;
    std::vector<std::string> executed;
    int reached = 0;
  };
  // Counts the open transports.
  class Counted : public rpc::Transport {
   public:
    Counted(std::unique_ptr<rpc::Transport> inner, FakeCopies* copies)
        : inner_(std::move(inner)), copies_(*copies) {
      copies_.Count(1);
    }
    ~Counted() override {
      inner_.reset();
      copies_.Count(-1);
    }
    std::shared_ptr<rpc::Attempt> NewAttempt(const std::string& method, const Bytes& request,
                                             absl::Time deadline, int failures) override {
      return inner_->NewAttempt(method, request, deadline, failures);
    }
    absl::string_view name() const override { return inner_->name(); }

   private:
    std::unique_ptr<rpc::Transport> inner_;
    FakeCopies& copies_;
  };
  void Count(int opened) {
    absl::MutexLock lock(&mutex_);
    open_ += opened;
  }

  Copy& Find(const std::string& address) {
    return *copies_[static_cast<size_t>(std::stoi(address.substr(5)))];
  }
  rpc::FaultInjector Injector(const std::string& address) {
    return [this, address](absl::string_view, int64_t) {
      absl::MutexLock lock(&mutex_);
      if (Find(address).state != State::kDead) return rpc::Fault();
      return rpc::Fault{rpc::Fault::Kind::kFailBefore, absl::UnavailableError("connection refused")};
    };
  }
  // Makes the newest document known to all copies that are up.
  void Tell() {
    std::vector<std::pair<int, Waiting>> answered;
    {
      absl::MutexLock lock(&mutex_);
      for (size_t c = 0; c < copies_.size(); ++c) {
        Copy& copy = *copies_[c];
        if (copy.state != State::kUp) continue;
        copy.known = document_;
        for (Waiting& one : copy.waiting) answered.emplace_back(static_cast<int>(c), std::move(one));
        copy.waiting.clear();
      }
    }
    for (auto& [copy, waiting] : answered) Answer(copy, waiting.call);
  }
  void Name(int i) ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) {
    document_.set_version(document_.version() + 1);
    document_.set_term(document_.term() + 1);
    document_.clear_in_sync();
    for (auto& copy : copies_) {
      v1::Replica& replica =
          copy == copies_[static_cast<size_t>(i)] ? *document_.mutable_primary() : *document_.add_in_sync();
      replica.set_id(copy->id);
      replica.set_address(copy->address);
    }
  }
  void OnEcho(int i, Held held) {
    const std::shared_ptr<rpc::ServerCall> call = held.call;
    absl::Status refusal;
    {
      absl::MutexLock lock(&mutex_);
      Copy& copy = *copies_[static_cast<size_t>(i)];
      ++copy.reached;
      if (copy.state == State::kDead) {
        refusal = absl::UnavailableError("the connection was lost");
      } else if (copy.state == State::kStopped || copy.holds) {
        copy.held.push_back(std::move(held));
        return;
      } else if (!copy.refusal.ok()) {
        refusal = copy.refusal;
      } else if (!held.reads && copy.known.primary().address() != copy.address) {
        refusal = absl::UnavailableError(absl::StrCat("not the primary: ", copy.known.primary().address()));
      } else {
        copy.executed.push_back(call->request().Flatten());
      }
    }
    if (!refusal.ok()) return call->Finish(refusal);
    call->Finish(Bytes(absl::StrCat(i, ":", call->request().Flatten())));
  }
  void OnGetPlacement(int i, const std::shared_ptr<rpc::ServerCall>& call) {
    v1::GetPlacementRequest request;
    TANDEM_CHECK(request.ParseFromString(call->request().Flatten()));
    {
      absl::MutexLock lock(&mutex_);
      Copy& copy = *copies_[static_cast<size_t>(i)];
      if (copy.state != State::kUp ||
          (request.wait_ms() > 0 && request.wait_version() == copy.known.version())) {
        const uint64_t number = next_++;
        copy.waiting.push_back({number, call});
        timers_.Schedule(MonotonicNow() + absl::Milliseconds(request.wait_ms()),
                         [this, i, number] { OnPatienceOver(i, number); });
        return;
      }
    }
    Answer(i, call);
  }
  void OnPatienceOver(int i, uint64_t number) {
    std::shared_ptr<rpc::ServerCall> call;
    {
      absl::MutexLock lock(&mutex_);
      Copy& copy = *copies_[static_cast<size_t>(i)];
      if (copy.state != State::kUp) return;  // never answered
      for (size_t w = 0; w < copy.waiting.size(); ++w) {
        if (copy.waiting[w].number != number) continue;
        call = copy.waiting[w].call;
        copy.waiting.erase(copy.waiting.begin() + static_cast<std::ptrdiff_t>(w));
        break;
      }
    }
    if (call != nullptr) Answer(i, call);
  }
  void Answer(int i, const std::shared_ptr<rpc::ServerCall>& call) {
    v1::ReplicaStatus status;
    {
      absl::MutexLock lock(&mutex_);
      const Copy& copy = *copies_[static_cast<size_t>(i)];
      const bool primary = copy.known.primary().address() == copy.address;
      *status.mutable_placement() = copy.known;
      status.set_shard(3);
      status.set_role(primary ? v1::REPLICA_ROLE_PRIMARY : v1::REPLICA_ROLE_FOLLOWER);
      status.set_serving(primary && copy.refusal.ok());
    }
    call->Finish(Bytes(status.SerializeAsString()));
  }

  mutable absl::Mutex mutex_;
  std::vector<std::unique_ptr<Copy>> copies_;  // as many as at first; their state is guarded
  v1::ShardPlacement document_ ABSL_GUARDED_BY(mutex_);
  uint64_t next_ ABSL_GUARDED_BY(mutex_) = 1;
  int open_ ABSL_GUARDED_BY(mutex_) = 0;
  std::atomic<int> opened_{0};
  rpc::TimerQueue timers_;
};

}  // namespace tandem::ps

#endif  // TANDEM_TESTS_PS_CLIENT_ROUTE_FAKE_COPIES_H_

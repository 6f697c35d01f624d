// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_PS_FAILOVER_COPIES_H_
#define TANDEM_TESTS_PS_FAILOVER_COPIES_H_

// Servers that are copies of one shard, in one process. The test decides their roles.

#include <algorithm>
#include <atomic>
#include <functional>
#include <memory>
#include <set>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/timed_wait.h"
#include "gtest/gtest.h"
#include "ps/failover/data_path.h"
#include "rpc/transport/loopback.h"
#include "rpc/wire/bulk_codec.h"
#include "tandem/v1/failover.pb.h"
#include "tests/ps/server/count_pushes.h"
#include "tests/ps/server/driver.h"
#include "tests/testing/status_matchers.h"

namespace tandem::ps::testing {

inline constexpr absl::Duration kTestDeadline = absl::Minutes(1);

// Remembers which events of a primary's links have come. Thread-safe.
class SeenEvents {
 public:
  LinkEvents Functions() {
    return {.on_complete = [this](const std::string& id) { Add("complete", id); },
            .on_caught_up = [this](const std::string& id) { Add("caught up", id); },
            .on_heard = [this](const std::string& id, const ClockReading&) { Add("heard", id); },
            .on_higher_term = [this](const std::string& id, uint64_t) { Add("higher term", id); },
            .on_gone =
                [this](const std::string& id, const absl::Status& why) {
                  absl::MutexLock lock(&mutex_);
                  gone_ = why;
                  seen_.insert({"gone", id});
                }};
  }
  // Waits for an event of the copy `id`, with a deadline.
  bool Await(const std::string& event, const std::string& id) {
    absl::MutexLock lock(&mutex_);
    const std::pair<std::string, std::string> key(event, id);
    const auto has = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return seen_.contains(key); };
    return AwaitFor(&mutex_, absl::Condition(&has), kTestDeadline);
  }
  absl::Status gone() const {
    absl::MutexLock lock(&mutex_);
    return gone_;
  }

 private:
  void Add(const std::string& event, const std::string& id) {
    absl::MutexLock lock(&mutex_);
    seen_.insert({event, id});
  }
  mutable absl::Mutex mutex_;
  std::set<std::pair<std::string, std::string>> seen_ ABSL_GUARDED_BY(mutex_);
  absl::Status gone_ ABSL_GUARDED_BY(mutex_);
};

// A server that is one copy of a shard. Followers must outlive their primaries, which call them until the
// end.
class ServerCopy {
 public:
  explicit ServerCopy(std::string id, ParameterServerOptions options = {}) : id_(std::move(id)) {
    options.failover = true;
    driver_ = std::make_unique<Driver>(options);
    append_ = std::make_unique<rpc::Method>(AppendMethod(&path().receiver()));
    services_ = std::make_shared<const std::vector<rpc::Service>>(std::vector<rpc::Service>{
        {"tandem.v1.Failover", {{"Append", rpc::Right::kReplica, [this](auto call) { Append(call); }}}}});
  }

  Driver* operator->() { return driver_.get(); }
  DataPath& path() { return *driver_->server().data_path(); }
  ShippedLog& log() { return *path().log(); }
  SeenEvents& events() { return events_; }
  const std::string& id() const { return id_; }

  // Makes this copy the primary, which serves.
  void Lead(uint64_t term = 1, int min_copies = 1) {
    term_ = term;
    TANDEM_ASSERT_OK(
        path().Promote({.term = term, .id = id_, .min_copies = min_copies, .events = events_.Functions()}));
    path().SetServing(true, "");
  }
  // Begins to copy the tables of this primary to `follower`, over a channel with these faults.
  void Attach(ServerCopy& follower, rpc::FaultInjector faults = nullptr) {
    follower.path().receiver().Open(term_, id_, follower.id());
    TANDEM_ASSERT_OK(path().StartLink({.id = follower.id(), .address = "loopback"},
                                      rpc::ConnectLoopback(follower.services_, std::move(faults))));
  }
  // Makes this primary serve a copy that has followed another one, with what it has.
  void AttachWithWhatItHas(ServerCopy& follower) {
    follower.id_ += "'";
    const Lineage held = follower.path().receiver().Reopen(term_, id_, follower.id());
    TANDEM_ASSERT_OK(path().StartLink({.id = follower.id(), .address = "loopback"},
                                      rpc::ConnectLoopback(follower.services_), held));
  }
  // Waits until the copy is whole, and makes pushes wait for it.
  void AwaitFollower(ServerCopy& follower) {
    ASSERT_TRUE(events_.Await("complete", follower.id())) << events_.gone();
    TANDEM_ASSERT_OK(log().Require(follower.id()));
    ASSERT_TRUE(events_.Await("caught up", follower.id())) << events_.gone();
    log().Confirm(1);
  }
  // Makes this follower the primary, as if its primary had died.
  void TakeOver(uint64_t term = 2) {
    path().receiver().Close("it takes over");
    ApplyReceived();
    Lead(term);
  }
  // Ends the term of this primary, another copy having taken over.
  void StepDown() {
    path().SetServing(false, "it has handed over");
    TimedNotification done;
    absl::Status status;
    path().StepDown([&](const absl::Status& result) {
      status = result;
      done.Notify();
    });
    ASSERT_TRUE(done.WaitFor(kTestDeadline));
    TANDEM_ASSERT_OK(status);
    EXPECT_EQ(path().log(), nullptr);
  }
  void ApplyReceived() {
    TimedNotification applied;
    absl::Status status;
    path().receiver().ApplyAll([&](const absl::Status& done) {
      status = done;
      applied.Notify();
    });
    ASSERT_TRUE(applied.WaitFor(kTestDeadline));
    TANDEM_ASSERT_OK(status);
  }
  // Neither messages nor beats arrive any more.
  void CutOff() {
    absl::MutexLock lock(&mutex_);
    cut_off_ = true;
  }
  void Reconnect() {
    absl::MutexLock lock(&mutex_);
    cut_off_ = false;
  }
  // Messages behind `number` do not arrive any more.
  void CutAfter(uint64_t number) {
    absl::MutexLock lock(&mutex_);
    cut_ = number;
  }

 private:
  void Append(const std::shared_ptr<rpc::ServerCall>& call) {
    v1::AppendRequest header;
    Bytes payload;
    const absl::Status decoded = rpc::DecodeBulk(call->request(), &header, &payload);
    if (!decoded.ok()) return call->Finish(decoded);
    {
      absl::MutexLock lock(&mutex_);
      if (cut_off_ || header.number() > cut_)
        return call->Finish(absl::UnavailableError("the connection was lost"));
    }
    append_->handler(call);
  }

  std::string id_;
  uint64_t term_ = 0;
  SeenEvents events_;
  absl::Mutex mutex_;
  uint64_t cut_ ABSL_GUARDED_BY(mutex_) = ~uint64_t{0};
  bool cut_off_ ABSL_GUARDED_BY(mutex_) = false;
  std::unique_ptr<Driver> driver_;
  std::unique_ptr<rpc::Method> append_;
  std::shared_ptr<const std::vector<rpc::Service>> services_;
};

inline float ValueOf(ServerCopy& server, uint64_t id, const std::string& table = "user") {
  return CountOf(*server.operator->(), id, table);
}

// Pushes by several threads, each for a worker of its own. No worker is far ahead of another.
class Load {
 public:
  explicit Load(uint32_t workers) : next_(workers) {}
  ~Load() { Stop(); }

  // Pushes until Stop, with `in_flight` pushes of each worker under way.
  void Start(ServerCopy& server, size_t in_flight) {
    for (uint32_t w = 0; w < next_.size(); ++w) {
      threads_.emplace_back([this, w, in_flight, &server] {
        while (!stop_) {
          if (next_[w] > Least() + 64) {
            std::this_thread::yield();
            continue;
          }
          std::vector<std::shared_ptr<TestCall>> calls;
          for (uint64_t i = 0; i < in_flight; ++i) {
            calls.push_back(
                server->StartPush({.worker = w, .step = next_[w] + i}, {CountPush(w, next_[w] + i)}));
          }
          for (const auto& call : calls) TANDEM_EXPECT_OK(call->Wait());
          next_[w] += in_flight;
        }
      });
    }
  }
  // Waits until every worker has pushed `steps` steps more.
  void AwaitMore(uint64_t steps) {
    const absl::Time deadline = MonotonicNow() + kTestDeadline;
    for (const uint64_t until = Least() + steps; Least() < until;) {
      TANDEM_CHECK_MSG(MonotonicNow() < deadline, "no pushes for a minute");
      std::this_thread::yield();
    }
  }
  void Stop() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
    threads_.clear();
  }
  // Pushes on this thread until every worker has pushed `steps` steps.
  void PushUntil(ServerCopy& server, uint64_t steps) {
    for (uint32_t w = 0; w < next_.size(); ++w) {
      for (; next_[w] < steps; ++next_[w]) {
        TANDEM_EXPECT_OK(server->Push({.worker = w, .step = next_[w]}, {CountPush(w, next_[w])}));
      }
    }
  }
  uint64_t Least() const { return *std::min_element(next_.begin(), next_.end()); }
  uint64_t Most() const { return *std::max_element(next_.begin(), next_.end()); }
  uint32_t workers() const { return static_cast<uint32_t>(next_.size()); }

 private:
  std::atomic<bool> stop_{false};
  std::vector<std::atomic<uint64_t>> next_;  // the steps that each worker has pushed
  std::vector<std::thread> threads_;
};

// Expects that each of `steps` pushes of each worker counts once.
inline void ExpectEachPushOnce(ServerCopy& server, uint32_t workers, uint64_t steps) {
  EXPECT_EQ(ValueOf(server, kShared), static_cast<float>(workers * steps));
  for (uint32_t w = 0; w < workers; ++w) {
    for (uint64_t s = 0; s < steps; ++s) ASSERT_EQ(ValueOf(server, PrivateRow(w, s)), 1.0f) << w << " " << s;
  }
}

}  // namespace tandem::ps::testing

#endif  // TANDEM_TESTS_PS_FAILOVER_COPIES_H_

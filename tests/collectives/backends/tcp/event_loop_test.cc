// SPDX-License-Identifier: Apache-2.0
#include "collectives/backends/tcp/event_loop.h"

#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include <atomic>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/synchronization/mutex.h"
#include "absl/synchronization/notification.h"
#include "base/ipc/descriptor.h"
#include "tests/testing/status_matchers.h"

namespace tandem::collectives::tcp {
namespace {

constexpr absl::Duration kLimit = absl::Seconds(20);

class Calls final : public EventLoop::Handler {
 public:
  explicit Calls(std::function<void(uint32_t events)> call) : call_(std::move(call)) {}
  void HandleEvents(uint32_t events) override { call_(events); }

 private:
  const std::function<void(uint32_t)> call_;
};

// Two ends of a connection.
struct Ends {
  Ends() {
    int fds[2];
    EXPECT_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0, fds), 0);
    near = ipc::Descriptor(fds[0]);
    far = ipc::Descriptor(fds[1]);
  }
  void Write() { EXPECT_EQ(write(far.get(), "x", 1), 1); }
  char Read() {
    char byte = 0;
    (void)!read(near.get(), &byte, 1);
    return byte;
  }
  ipc::Descriptor near, far;
};

class EventLoopTest : public ::testing::Test {
 protected:
  EventLoopTest() {
    auto started = EventLoop::Start();
    TANDEM_EXPECT_OK(started);
    loop_ = *std::move(started);
  }
  std::unique_ptr<EventLoop> loop_;
};

TEST_F(EventLoopTest, AHandlerIsCalledByOneThreadAndOnlyForItsOwnDescriptor) {
  Ends one, other;
  absl::Notification called;
  std::thread::id thread;
  Calls handler([&](uint32_t events) {
    EXPECT_EQ(events, static_cast<uint32_t>(EPOLLIN));
    EXPECT_EQ(one.Read(), 'x');
    thread = std::this_thread::get_id();
    called.Notify();
  });
  Calls never([](uint32_t) { ADD_FAILURE() << "nothing was written there"; });
  TANDEM_ASSERT_OK(loop_->Watch(other.near.get(), EPOLLIN, &never));
  TANDEM_ASSERT_OK(loop_->Watch(one.near.get(), EPOLLIN, &handler));
  one.Write();
  ASSERT_TRUE(called.WaitForNotificationWithTimeout(kLimit));
  EXPECT_NE(thread, std::this_thread::get_id());
  loop_->Unwatch(one.near.get(), &handler);
  loop_->Unwatch(other.near.get(), &never);
}

TEST_F(EventLoopTest, ALaterWatchReplacesTheEvents) {
  Ends ends;
  std::atomic<bool> wants_to_write{false};
  absl::Notification writable;
  Calls handler([&](uint32_t events) {
    EXPECT_TRUE(wants_to_write) << events;
    if ((events & EPOLLOUT) != 0 && !writable.HasBeenNotified()) writable.Notify();
  });
  TANDEM_ASSERT_OK(loop_->Watch(ends.near.get(), EPOLLIN, &handler));
  wants_to_write = true;
  TANDEM_ASSERT_OK(loop_->Watch(ends.near.get(), EPOLLIN | EPOLLOUT, &handler));
  ASSERT_TRUE(writable.WaitForNotificationWithTimeout(kLimit));
  loop_->Unwatch(ends.near.get(), &handler);
}

TEST_F(EventLoopTest, TheEndOfAConnectionIsAnEvent) {
  Ends ends;
  absl::Notification ended;
  Calls handler([&](uint32_t events) {
    EXPECT_NE(events & EPOLLIN, 0u);
    loop_->Unwatch(ends.near.get(), &handler);
    ended.Notify();
  });
  TANDEM_ASSERT_OK(loop_->Watch(ends.near.get(), EPOLLIN, &handler));
  ends.far.Reset();
  ASSERT_TRUE(ended.WaitForNotificationWithTimeout(kLimit));
}

TEST_F(EventLoopTest, UnwatchWaitsForTheHandlerThatRuns) {
  Ends ends;
  absl::Notification entered, leave, returned;
  std::atomic<bool> left{false};
  // The byte stays unread: the loop calls the handler in each turn until Unwatch.
  Calls handler([&](uint32_t) {
    EXPECT_FALSE(returned.HasBeenNotified()) << "it was called after Unwatch";
    if (!entered.HasBeenNotified()) entered.Notify();
    leave.WaitForNotification();
    left = true;
  });
  TANDEM_ASSERT_OK(loop_->Watch(ends.near.get(), EPOLLIN, &handler));
  ends.Write();
  ASSERT_TRUE(entered.WaitForNotificationWithTimeout(kLimit));
  std::thread other([&] {
    loop_->Unwatch(ends.near.get(), &handler);
    EXPECT_TRUE(left);
    returned.Notify();
  });
  EXPECT_FALSE(returned.WaitForNotificationWithTimeout(absl::Milliseconds(50)));
  leave.Notify();
  EXPECT_TRUE(returned.WaitForNotificationWithTimeout(kLimit));
  other.join();
  // The loop takes another turn, for another descriptor.
  Ends more;
  absl::Notification turned;
  Calls last([&](uint32_t) {
    loop_->Unwatch(more.near.get(), &last);
    turned.Notify();
  });
  TANDEM_ASSERT_OK(loop_->Watch(more.near.get(), EPOLLIN, &last));
  more.Write();
  EXPECT_TRUE(turned.WaitForNotificationWithTimeout(kLimit));
}

TEST_F(EventLoopTest, AHandlerThatUnwatchesAnotherEndsItsCallsAtOnce) {
  // Both descriptors are ready in the same turn: the handler that runs first removes the other.
  Ends gate, ends[2];
  absl::Notification in_gate, open_gate, done;
  std::atomic<int> calls{0};
  std::vector<std::unique_ptr<Calls>> handlers;
  for (int i = 0; i < 2; ++i) {
    handlers.push_back(std::make_unique<Calls>([&, i](uint32_t) {
      ++calls;
      for (int k : {1 - i, i}) loop_->Unwatch(ends[k].near.get(), handlers[k].get());
      done.Notify();
    }));
  }
  Calls keeper([&](uint32_t) {
    gate.Read();
    in_gate.Notify();
    open_gate.WaitForNotification();
  });
  TANDEM_ASSERT_OK(loop_->Watch(gate.near.get(), EPOLLIN, &keeper));
  gate.Write();
  ASSERT_TRUE(in_gate.WaitForNotificationWithTimeout(kLimit));
  for (int i = 0; i < 2; ++i) {
    TANDEM_ASSERT_OK(loop_->Watch(ends[i].near.get(), EPOLLIN, handlers[i].get()));
    ends[i].Write();
  }
  open_gate.Notify();
  ASSERT_TRUE(done.WaitForNotificationWithTimeout(kLimit));
  loop_->Unwatch(gate.near.get(), &keeper);  // the turn is over
  EXPECT_EQ(calls, 1);
}

TEST_F(EventLoopTest, ManyThreadsUnwatchAtTheSameTime) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 100; ++round) {
        Ends ends;
        std::atomic<bool> watched{true};
        Calls handler([&](uint32_t) { EXPECT_TRUE(watched); });
        TANDEM_EXPECT_OK(loop_->Watch(ends.near.get(), EPOLLIN, &handler));
        ends.Write();
        loop_->Unwatch(ends.near.get(), &handler);
        watched = false;
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST_F(EventLoopTest, ADescriptorThatCannotBeWatchedIsAnError) {
  Calls handler([](uint32_t) { ADD_FAILURE(); });
  EXPECT_THAT(loop_->Watch(-1, EPOLLIN, &handler),
              testing::StatusIs(absl::StatusCode::kUnavailable, ::testing::HasSubstr("epoll_ctl")));
  loop_->Unwatch(-1, &handler);  // returns
}

TEST_F(EventLoopTest, ALoopEndsWhileDescriptorsAreWatched) {
  Ends ends;
  Calls handler([&](uint32_t) {});
  TANDEM_ASSERT_OK(loop_->Watch(ends.near.get(), EPOLLIN | EPOLLOUT, &handler));
  loop_.reset();
}

}  // namespace
}  // namespace tandem::collectives::tcp

// SPDX-License-Identifier: Apache-2.0
// The order of events within a push, which real channels leave to chance.

#include "ps/client/push_operation.h"

#include <atomic>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "absl/synchronization/mutex.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rpc/wire/bulk_codec.h"
#include "tests/testing/status_matchers.h"

namespace tandem::ps {
namespace {

using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::IsEmpty;
using ::testing::Not;

using Answer = absl::StatusOr<Bytes>;

// Answers each call, before CallAsync returns, with the next of its answers; the last one repeats. While it
// is held back, it answers later.
class ScriptedChannel : public rpc::Channel {
 public:
  explicit ScriptedChannel(std::deque<Answer> answers) : answers_(std::move(answers)) {}

  void CallAsync(absl::string_view, Bytes request, const rpc::CallOptions&, Done done) override {
    v1::PushRequest header;
    Bytes payload;
    TANDEM_CHECK(rpc::DecodeBulk(request, &header, &payload).ok());
    Answer answer;
    {
      absl::MutexLock lock(&mutex_);
      payloads_.push_back(payload.Flatten());
      answer = answers_.front();
      if (answers_.size() > 1) answers_.pop_front();
      if (held_back_) {
        waiting_ = [answer = std::move(answer), done = std::move(done)]() mutable {
          std::move(done)(std::move(answer));
        };
        return;
      }
    }
    std::move(done)(std::move(answer));
  }
  absl::string_view transport() const override { return "scripted"; }
  const std::string& target() const override { return target_; }

  void HoldBack() {
    absl::MutexLock lock(&mutex_);
    held_back_ = true;
  }
  // Answers the call that was held back, and the later ones at once.
  void Release() {
    absl::AnyInvocable<void() &&> waiting;
    {
      absl::MutexLock lock(&mutex_);
      held_back_ = false;
      waiting = std::move(waiting_);
    }
    std::move(waiting)();
  }
  std::vector<std::string> payloads() const {
    absl::MutexLock lock(&mutex_);
    return payloads_;
  }

 private:
  const std::string target_ = "scripted";
  mutable absl::Mutex mutex_;
  std::deque<Answer> answers_;
  bool held_back_ = false;
  absl::AnyInvocable<void() &&> waiting_;
  std::vector<std::string> payloads_;
};

Answer Applied(uint64_t update = 0) {
  v1::PushResponse response;
  if (update > 0) response.add_places()->set_update(update);
  return Bytes(response.SerializeAsString());
}
Answer Lost() { return absl::InternalError("lost"); }

struct Servers {
  explicit Servers(std::vector<std::deque<Answer>> answers) {
    for (std::deque<Answer>& script : answers) {
      auto channel = std::make_unique<ScriptedChannel>(std::move(script));
      scripted.push_back(channel.get());
      channels.push_back(std::move(channel));
    }
  }
  // Starts a push of one slice.
  std::shared_ptr<PushOperation> Push(PushDone done) {
    auto push = std::make_shared<PushOperation>(
        channels, std::vector<std::shared_ptr<std::atomic<bool>>>{gets_positions},
        PushOperation::Options{.timeout = absl::Seconds(30), .step = 7, .retryable = true},
        PushWindow::Slot(), std::vector<PushedSegments>(), std::move(done));
    for (uint32_t s = 0; s < channels.size(); ++s) {
      EncodedPush request;
      request.header.add_slices();
      request.payload = Bytes("gradients");
      push->Add(s, std::move(request));
    }
    push->Start();
    return push;
  }

  std::vector<std::unique_ptr<rpc::Channel>> channels;
  std::vector<ScriptedChannel*> scripted;
  const std::shared_ptr<std::atomic<bool>> gets_positions = std::make_shared<std::atomic<bool>>(false);
};

TEST(PushOperationTest, ARetryFromWithinDoneSendsNoRequestTwice) {
  Servers servers({{Lost(), Applied(1)}, {Lost(), Applied()}});
  *servers.gets_positions = true;  // server 0 comes first
  absl::Status first, second, third = absl::UnknownError("not called");
  const std::shared_ptr<PushOperation> push =
      servers.Push([&first](absl::Status status) { first = std::move(status); });
  EXPECT_THAT(first, testing::StatusIs(absl::StatusCode::kInternal));
  EXPECT_THAT(push->outcomes(), ElementsAre(PushOutcome::kUnknown, PushOutcome::kNotSent));
  // Server 0 answers, server 1 does not, and `done` retries at once.
  push->RetryAsync([&](absl::Status status) {
    second = std::move(status);
    push->RetryAsync([&third](absl::Status result) { third = std::move(result); });
  });
  EXPECT_THAT(second, testing::StatusIs(absl::StatusCode::kInternal));
  TANDEM_EXPECT_OK(third);
  EXPECT_THAT(push->outcomes(), Each(PushOutcome::kApplied));
  EXPECT_EQ(servers.scripted[0]->payloads().size(), 2);
  EXPECT_EQ(servers.scripted[1]->payloads().size(), 2);
}

TEST(PushOperationTest, ARetryThatMeetsTheEndOfThePushLosesNeitherACallbackNorThePayload) {
  for (int i = 0; i < 200; ++i) {
    const bool applied = i % 2 == 0;
    Servers servers({{Applied()}, {applied ? Applied() : Lost(), Applied()}});
    servers.scripted[1]->HoldBack();
    std::atomic<int> ended{0};
    const std::shared_ptr<PushOperation> push = servers.Push([&](absl::Status status) {
      EXPECT_EQ(status.ok(), applied);
      ++ended;
    });
    std::thread answers([&] { servers.scripted[1]->Release(); });
    bool under_way = true;
    while (under_way) {
      std::atomic<int> retried{0};
      push->RetryAsync([&](absl::Status status) {
        under_way = absl::StrContains(status.message(), "still under way");
        if (!under_way) {
          TANDEM_EXPECT_OK(status);
        }
        ++retried;
      });
      ASSERT_EQ(retried, 1);
    }
    answers.join();
    ASSERT_EQ(ended, 1);
    EXPECT_THAT(servers.scripted[1]->payloads(), Each(Not(IsEmpty())));
  }
}

}  // namespace
}  // namespace tandem::ps

// SPDX-License-Identifier: Apache-2.0
// How far a follower says that it is behind its primary: compared with a model of both, in simulated time.

#include <atomic>
#include <cstddef>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/random.h"
#include "base/timed_wait.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/failover/receiver.h"
#include "tests/testing/random_seed.h"
#include "tests/testing/status_matchers.h"

namespace tandem::ps {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::Duration kReadTestDeadline = absl::Minutes(1);
constexpr absl::Duration kAnyLag = absl::Hours(24);

// Remembers the last push that was applied. Can be held up.
class LastApplied : public ReceivedRecords {
 public:
  absl::Status Apply(const Record& record, const std::shared_ptr<const void>&) override {
    absl::MutexLock lock(&mutex_);
    const auto free = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !held_; };
    AwaitFor(&mutex_, absl::Condition(&free), kReadTestDeadline);
    if (record.kind == RecordKind::kPush) position_.store(record.position);
    return absl::OkStatus();
  }
  absl::Status Complete() override { return absl::OkStatus(); }
  void Hold(bool hold) {
    absl::MutexLock lock(&mutex_);
    held_ = hold;
  }
  uint64_t position() const { return position_.load(); }

 private:
  absl::Mutex mutex_;
  bool held_ ABSL_GUARDED_BY(mutex_) = false;
  std::atomic<uint64_t> position_{0};
};

std::string EncodedRecord(RecordKind kind, uint64_t position) {
  std::string record;
  AppendRecord(kind, position, 0, Bytes(std::string("body")), &record);
  return record;
}

// A primary, a network that delays and reorders, and a receiver. One clock stands for the time of the world;
// the model's primary never tells it.
class ReceiverReadsTest : public ::testing::Test {
 protected:
  void SetUp() override { Open("f"); }

  void Open(const std::string& self) {
    self_ = self;
    receiver_.Open(/*term=*/1, "p", self);
    number_ = 0;
    shipped_ = last_;
    echo_ = 0;
  }
  // The primary.
  void Append() {
    ++last_;
    appended_.push_back(clock_.Now());
  }
  // Returns a message with all records that were not sent; `beat`: without any, and without a number.
  std::pair<v1::AppendRequest, std::string> Message(bool beat, bool leads = true) {
    v1::AppendRequest header;
    header.set_term(1);
    header.set_primary("p");
    header.set_follower(self_);
    header.set_position(last_);
    header.set_leads(leads);
    header.set_echo(echo_);
    std::string payload;
    if (!beat) {
      header.set_number(++number_);
      if (number_ == 1)
        payload = EncodedRecord(RecordKind::kState, shipped_) + EncodedRecord(RecordKind::kEnd, shipped_);
      while (shipped_ < last_) payload += EncodedRecord(RecordKind::kPush, ++shipped_);
    }
    return {header, payload};
  }
  // The follower gets a message. Its answers wait in answers_.
  void Deliver(const std::pair<v1::AppendRequest, std::string>& message) {
    receiver_.Append(message.first, Bytes(message.second),
                     [this](absl::StatusOr<v1::AppendResponse> response) {
                       if (!response.ok()) return;
                       absl::MutexLock lock(&mutex_);
                       answers_.push_back(*response);
                     });
  }
  // The primary gets the answer `i`.
  v1::AppendResponse TakeAnswer(size_t i) {
    absl::MutexLock lock(&mutex_);
    const v1::AppendResponse answer = answers_[i];
    answers_.erase(answers_.begin() + static_cast<std::ptrdiff_t>(i));
    echo_ = std::max(echo_, answer.clock());
    return answer;
  }
  size_t answers() {
    absl::MutexLock lock(&mutex_);
    return answers_.size();
  }
  // Sends a message and gets its answer at once.
  v1::AppendResponse Exchange(bool beat, bool leads = true) {
    Deliver(Message(beat, leads));
    return TakeAnswer(answers() - 1);
  }
  // Makes the copy complete, and its lag known.
  void Complete() {
    Exchange(/*beat=*/false);
    ApplyAll();
    Exchange(/*beat=*/true);
  }
  void ApplyAll() {
    TimedNotification done;
    receiver_.ApplyAll([&](const absl::Status&) { done.Notify(); });
    ASSERT_TRUE(done.WaitFor(kReadTestDeadline));
  }
  // Returns the last record that the primary had before the moment that was `ago`.
  uint64_t LastRecord(absl::Duration ago) {
    uint64_t position = 0;
    while (position < last_ && appended_[position] < clock_.Now() - ago) ++position;
    return position;
  }

  SimulatedClock clock_;
  LastApplied applied_;
  std::string self_;
  uint64_t number_ = 0, last_ = 0, shipped_ = 0, echo_ = 0;
  std::vector<absl::Time> appended_;  // by position - 1
  absl::Mutex mutex_;
  std::vector<v1::AppendResponse> answers_ ABSL_GUARDED_BY(mutex_);
  Receiver receiver_{{.boot_time = [this] { return clock_.Now(); }}, &applied_};
};

TEST_F(ReceiverReadsTest, HasEverythingThatThePrimaryHadBeforeTheLagWhateverIsDelayedOrReordered) {
  const uint64_t seed = tandem::testing::RandomSeed();
  CounterRandom random(seed, 0);
  std::vector<std::pair<v1::AppendRequest, std::string>> network;
  Complete();
  constexpr int kEnough = 100;
  int served = 0;
  // A thread applies the records. While it does not run, followers serve nothing.
  const absl::Time deadline = MonotonicNow() + absl::Minutes(1);
  for (int step = 0; step < 20000 || served <= kEnough; ++step) {
    ASSERT_LT(MonotonicNow(), deadline) << "seed " << seed << ", step " << step << ", served " << served;
    switch (random.Below(9)) {
      case 0:
      case 1:
        Append();
        break;
      case 2:
        // The window of a link: no message is further ahead.
        if (number_ < receiver_.state().stored_number + 16) network.push_back(Message(/*beat=*/false));
        break;
      case 3:
        network.push_back(Message(/*beat=*/true));
        break;
      case 4:
      case 5:
        if (!network.empty()) {
          const size_t i = random.Below(network.size());
          Deliver(network[i]);
          if (random.Below(4) != 0) network.erase(network.begin() + static_cast<std::ptrdiff_t>(i));
        }
        break;
      case 6:
        if (const size_t waiting = answers(); waiting > 0) TakeAnswer(random.Below(waiting));
        break;
      case 7:
        // Sometimes the follower stands still while messages lie in its sockets.
        clock_.Advance(random.Below(100) == 0 ? absl::Seconds(10)
                                              : absl::Milliseconds(static_cast<int>(random.Below(20))));
        applied_.Hold(random.Below(4) == 0);
        break;
      default: {
        const absl::Duration max_lag = absl::Milliseconds(static_cast<int>(1 + random.Below(1000)));
        const absl::StatusOr<Receiver::Read> read = receiver_.CheckRead(max_lag);
        const uint64_t applied = applied_.position();
        if (!read.ok()) {
          EXPECT_THAT(read, StatusIs(absl::StatusCode::kOutOfRange));
          break;
        }
        ++served;
        EXPECT_LE(read->lag, max_lag);
        ASSERT_GE(applied, LastRecord(read->lag))
            << "seed " << seed << ", step " << step << ", " << read->lag;
      }
    }
  }
  applied_.Hold(false);
  // The lag is small once the network works again.
  for (const auto& message : network) Deliver(message);
  ApplyAll();
  Exchange(/*beat=*/false);
  ApplyAll();
  Exchange(/*beat=*/true);
  TANDEM_ASSERT_OK_AND_ASSIGN(const Receiver::Read read, receiver_.CheckRead(absl::Milliseconds(1)));
  EXPECT_EQ(read.lag, absl::ZeroDuration());
  EXPECT_EQ(applied_.position(), last_);
}

TEST_F(ReceiverReadsTest, AMessageThatLayWhileTheProcessStoodStillProvesNothingNewer) {
  Complete();
  TANDEM_EXPECT_OK(receiver_.CheckRead(absl::Milliseconds(100)));
  const auto beat = Message(/*beat=*/true);
  Append();  // behind the beat: the follower knows nothing of it
  clock_.Advance(absl::Seconds(10));
  Deliver(beat);
  EXPECT_THAT(
      receiver_.CheckRead(absl::Milliseconds(100)),
      StatusIs(absl::StatusCode::kOutOfRange,
               AllOf(HasSubstr("10s behind"), HasSubstr("allows 100ms"), HasSubstr("ask the primary"))));
  EXPECT_EQ(receiver_.lag(), absl::Seconds(10));
  TakeAnswer(0);
  Exchange(/*beat=*/false);
  ApplyAll();
  TANDEM_ASSERT_OK_AND_ASSIGN(const Receiver::Read read, receiver_.CheckRead(absl::Milliseconds(100)));
  EXPECT_EQ(read.lag, absl::ZeroDuration());
}

TEST_F(ReceiverReadsTest, RecordsThatAreNotAppliedCountForTheLag) {
  Complete();
  applied_.Hold(true);
  Append();
  Exchange(/*beat=*/false);
  for (int i = 0; i < 10; ++i) {
    clock_.Advance(absl::Milliseconds(20));
    Exchange(/*beat=*/true);
  }
  EXPECT_EQ(receiver_.lag(), absl::Milliseconds(200));
  applied_.Hold(false);
  ApplyAll();
  EXPECT_EQ(receiver_.lag(), absl::Milliseconds(20));  // the last echo is a beat old
}

TEST_F(ReceiverReadsTest, ACopyIsReadOnceItIsCompleteAndNotAfterItsEnd) {
  const auto refused = [&] {
    EXPECT_THAT(receiver_.CheckRead(kAnyLag),
                StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("ask the primary")));
    EXPECT_EQ(receiver_.lag(), absl::InfiniteDuration());
  };
  refused();
  applied_.Hold(true);
  Append();
  Exchange(/*beat=*/false);
  Exchange(/*beat=*/true);
  refused();
  applied_.Hold(false);
  ApplyAll();
  Exchange(/*beat=*/true);
  TANDEM_ASSERT_OK_AND_ASSIGN(const Receiver::Read first, receiver_.CheckRead(kAnyLag));
  receiver_.Close("this copy takes over");
  refused();
  Open("g");
  refused();
  Complete();
  TANDEM_ASSERT_OK_AND_ASSIGN(const Receiver::Read second, receiver_.CheckRead(kAnyLag));
  EXPECT_NE(first.copy, second.copy);
}

TEST_F(ReceiverReadsTest, APrimaryThatMayHaveASuccessorProvesNothing) {
  Complete();
  clock_.Advance(absl::Milliseconds(500));
  Exchange(/*beat=*/true, /*leads=*/false);
  Exchange(/*beat=*/true, /*leads=*/false);
  EXPECT_EQ(receiver_.lag(), absl::Milliseconds(500));
  Exchange(/*beat=*/true);
  EXPECT_EQ(receiver_.lag(), absl::ZeroDuration());
}

TEST_F(ReceiverReadsTest, AnEchoThatThisProcessHasNotToldIsIgnored) {
  Complete();
  auto beat = Message(/*beat=*/true);
  beat.first.set_echo(beat.first.echo() + 1'000'000'000'000);
  clock_.Advance(absl::Milliseconds(30));
  Deliver(beat);
  EXPECT_EQ(receiver_.lag(), absl::Milliseconds(30));
}

TEST_F(ReceiverReadsTest, WhileItIsReadItWantsMoreBeats) {
  Complete();
  EXPECT_EQ(Exchange(/*beat=*/true).beat_ms(), 0u);
  TANDEM_EXPECT_OK(receiver_.CheckRead(absl::Seconds(2)));
  EXPECT_EQ(Exchange(/*beat=*/true).beat_ms(), 500u);
  TANDEM_EXPECT_OK(receiver_.CheckRead(absl::Milliseconds(100)));
  TANDEM_EXPECT_OK(receiver_.CheckRead(absl::Seconds(2)));
  EXPECT_EQ(Exchange(/*beat=*/true).beat_ms(), 25u);
  clock_.Advance(absl::Seconds(11));
  EXPECT_EQ(Exchange(/*beat=*/true).beat_ms(), 0u);
  // A read that is refused wants them, too.
  clock_.Advance(absl::Milliseconds(10));
  EXPECT_FALSE(receiver_.CheckRead(absl::Milliseconds(1)).ok());
  EXPECT_EQ(Exchange(/*beat=*/true).beat_ms(), 5u);
}

TEST_F(ReceiverReadsTest, ACopyThatFollowsAnotherPrimaryIsNotReadBeforeItsRowsAreKnownToBeThatPrimarys) {
  Append();
  Complete();
  TANDEM_EXPECT_OK(receiver_.CheckRead(kAnyLag));
  EXPECT_EQ(receiver_.Reopen(/*term=*/2, "q", "g").position, 1u);
  number_ = 0;
  const auto exchange = [this](bool beat) {
    auto message = Message(beat);
    message.first.set_term(2);
    message.first.set_primary("q");
    message.first.set_follower("g");
    if (!beat) message.second = EncodedRecord(RecordKind::kContinue, 1);
    Deliver(message);
    TakeAnswer(answers() - 1);
  };
  // The primary may lack what this copy has, although it counts as many records.
  exchange(/*beat=*/true);
  exchange(/*beat=*/true);
  EXPECT_THAT(receiver_.CheckRead(kAnyLag), StatusIs(absl::StatusCode::kOutOfRange));
  exchange(/*beat=*/false);
  exchange(/*beat=*/true);
  TANDEM_EXPECT_OK(receiver_.CheckRead(kAnyLag));
}

}  // namespace
}  // namespace tandem::ps

// SPDX-License-Identifier: Apache-2.0
#include "ps/failover/receiver.h"

#include <algorithm>
#include <deque>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/random.h"
#include "base/timed_wait.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "rpc/wire/bulk_codec.h"
#include "tests/ps/server/driver.h"
#include "tests/testing/random_seed.h"
#include "tests/testing/status_matchers.h"

namespace tandem::ps {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr absl::Duration kDeadline = absl::Minutes(1);

// Remembers what was applied. Can be held up and can fail.
class Applied : public ReceivedRecords {
 public:
  absl::Status Apply(const Record& record, const std::shared_ptr<const void>&) override {
    return Add(absl::StrCat(record.body));
  }
  absl::Status Complete() override { return Add("END"); }

  void Hold(bool hold) {
    absl::MutexLock lock(&mutex_);
    held_ = hold;
  }
  void FailAt(const std::string& body) {
    absl::MutexLock lock(&mutex_);
    fails_ = body;
  }
  std::vector<std::string> bodies() const {
    absl::MutexLock lock(&mutex_);
    return bodies_;
  }

 private:
  absl::Status Add(std::string body) {
    absl::MutexLock lock(&mutex_);
    const auto free = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !held_; };
    AwaitFor(&mutex_, absl::Condition(&free), kDeadline);
    if (body == fails_) return absl::ResourceExhaustedError("no room for the rows");
    bodies_.push_back(std::move(body));
    return absl::OkStatus();
  }

  mutable absl::Mutex mutex_;
  bool held_ ABSL_GUARDED_BY(mutex_) = false;
  std::string fails_ ABSL_GUARDED_BY(mutex_) = "-";
  std::vector<std::string> bodies_ ABSL_GUARDED_BY(mutex_);
};

// The answer to one message.
class Answer {
 public:
  rpc::Reply<v1::AppendResponse> reply() {
    return [this](absl::StatusOr<v1::AppendResponse> response) {
      EXPECT_FALSE(done_.HasBeenNotified());
      response_ = std::move(response);
      done_.Notify();
    };
  }
  bool answered() const { return done_.HasBeenNotified(); }
  const absl::StatusOr<v1::AppendResponse>& Wait() {
    EXPECT_TRUE(done_.WaitFor(kDeadline));
    return response_;
  }

 private:
  absl::StatusOr<v1::AppendResponse> response_ = absl::UnknownError("not answered");
  TimedNotification done_;
};

std::string RecordOf(RecordKind kind, uint64_t position, const std::string& body) {
  std::string record;
  AppendRecord(kind, position, 0, Bytes(body), &record);
  return record;
}
std::string PushAt(uint64_t position) {
  return RecordOf(RecordKind::kPush, position, absl::StrCat("push ", position));
}
std::string StateAt(uint64_t position) { return RecordOf(RecordKind::kState, position, "state"); }

class ReceiverTest : public ::testing::Test {
 protected:
  void SetUp() override { receiver_.Open(/*term=*/3, "p", "f"); }

  v1::AppendRequest Header(uint64_t number) const {
    v1::AppendRequest header;
    header.set_shard(1);
    header.set_term(3);
    header.set_primary("p");
    header.set_follower("f");
    header.set_number(number);
    return header;
  }
  Answer& Send(const v1::AppendRequest& header, const std::string& payload) {
    answers_.push_back(std::make_unique<Answer>());
    receiver_.Append(header, Bytes(payload), answers_.back()->reply());
    return *answers_.back();
  }
  Answer& Send(uint64_t number, const std::string& payload) { return Send(Header(number), payload); }
  absl::Status ApplyAll() {
    TimedNotification done;
    absl::Status status;
    receiver_.ApplyAll([&](const absl::Status& applied) {
      status = applied;
      done.Notify();
    });
    EXPECT_TRUE(done.WaitFor(kDeadline));
    return status;
  }

  Applied applied_;
  std::vector<std::unique_ptr<Answer>> answers_;
  absl::Status failure_;
  TimedNotification failed_;
  Receiver receiver_{{.shard = 1,
                      .max_unapplied_bytes = 200,
                      .window = 4,
                      .on_failure =
                          [this](const absl::Status& why) {
                            failure_ = why;
                            failed_.Notify();
                          }},
                     &applied_};
};

TEST_F(ReceiverTest, AppliesTheMessagesInTheirOrderHoweverTheyCome) {
  const uint64_t seed = tandem::testing::RandomSeed();
  constexpr uint64_t kMessages = 200;
  std::vector<std::string> payloads = {"", StateAt(10)};
  std::vector<std::string> expected = {"state"};
  uint64_t position = 10;
  while (payloads.size() <= kMessages) {
    std::string payload;
    for (uint64_t i = payloads.size() % 3; i > 0; --i) {
      payload += PushAt(++position);
      expected.push_back(absl::StrCat("push ", position));
    }
    payloads.push_back(payload);
  }
  // Sends some message of the window, perhaps once more, until all are answered.
  CounterRandom random(seed, 0);
  for (uint64_t stored = 0; stored < kMessages; stored = receiver_.state().stored_number) {
    const uint64_t number = std::max<uint64_t>(1, stored + random.Below(6) - 1);
    if (number <= std::min(stored + 4, kMessages)) Send(number, payloads[number]);
  }
  for (const auto& answer : answers_) TANDEM_EXPECT_OK(answer->Wait());
  TANDEM_EXPECT_OK(ApplyAll());
  EXPECT_EQ(applied_.bodies(), expected);
  EXPECT_EQ(receiver_.state().stored_position, position);
  EXPECT_EQ(receiver_.state().applied_position, position);
}

TEST_F(ReceiverTest, AnswersWhenAMessageIsStoredAndNotBefore) {
  applied_.Hold(true);
  Answer& second = Send(2, PushAt(11));
  EXPECT_FALSE(second.answered());
  TANDEM_ASSERT_OK_AND_ASSIGN(const v1::AppendResponse first, Send(1, StateAt(10)).Wait());
  EXPECT_EQ(first.stored_number(), 2u);
  EXPECT_EQ(first.stored_position(), 11u);
  TANDEM_ASSERT_OK_AND_ASSIGN(const v1::AppendResponse again, second.Wait());
  EXPECT_EQ(again.stored_number(), 2u);
  TANDEM_ASSERT_OK_AND_ASSIGN(const v1::AppendResponse repeated, Send(1, StateAt(10)).Wait());
  EXPECT_EQ(repeated.stored_number(), 2u);
  applied_.Hold(false);
  TANDEM_EXPECT_OK(ApplyAll());
  EXPECT_EQ(applied_.bodies().size(), 2u);
}

TEST_F(ReceiverTest, AcknowledgesNoMoreWhileTooMuchIsNotAppliedButAnswersAtOnce) {
  applied_.Hold(true);
  TANDEM_EXPECT_OK(Send(1, StateAt(10)).Wait());
  std::string many;
  for (uint64_t position = 11; position <= 20; ++position) many += PushAt(position);
  v1::AppendRequest beat = Header(0);
  beat.set_position(33);
  for (Answer* answer : {&Send(2, many), &Send(2, many), &Send(beat, "")}) {
    TANDEM_ASSERT_OK_AND_ASSIGN(const v1::AppendResponse response, answer->Wait());
    EXPECT_EQ(response.stored_number(), 1u);
    EXPECT_EQ(response.stored_position(), 10u);
  }
  EXPECT_EQ(receiver_.state().primary_position, 33u);
  EXPECT_EQ(receiver_.state().stored_position, 20u);
  applied_.Hold(false);
  TANDEM_EXPECT_OK(ApplyAll());
  TANDEM_ASSERT_OK_AND_ASSIGN(const v1::AppendResponse later, Send(beat, "").Wait());
  EXPECT_EQ(later.stored_number(), 2u);
  EXPECT_EQ(later.stored_position(), 20u);
  EXPECT_EQ(applied_.bodies().size(), 11u);
}

TEST_F(ReceiverTest, WhoWaitsForRecordsThatAreDroppedIsToldSo) {
  applied_.Hold(true);
  TANDEM_EXPECT_OK(Send(1, StateAt(10)).Wait());
  TANDEM_EXPECT_OK(Send(2, PushAt(11)).Wait());
  TimedNotification done;
  absl::Status status;
  receiver_.ApplyAll([&](const absl::Status& applied) {
    status = applied;
    done.Notify();
  });
  std::thread drops([this] { receiver_.Drop("it is copied anew"); });
  ASSERT_TRUE(done.WaitFor(kDeadline));
  applied_.Hold(false);
  drops.join();
  EXPECT_THAT(status, StatusIs(absl::StatusCode::kCancelled, HasSubstr("copied anew")));
}

TEST_F(ReceiverTest, ADamagedMessageIsNotStoredAndMayComeAgain) {
  TANDEM_EXPECT_OK(Send(1, StateAt(10)).Wait());
  const std::string whole = PushAt(11) + PushAt(12);
  for (size_t at = 0; at < whole.size(); at += 7) {  // the last byte of each record is padding
    std::string damaged = whole;
    damaged[at] ^= 1;
    EXPECT_THAT(
        Send(2, damaged).Wait(),
        StatusIs(absl::StatusCode::kDataLoss, AllOf(HasSubstr("shard 1, copy f"), HasSubstr("primary p"))));
  }
  EXPECT_THAT(Send(2, whole.substr(0, whole.size() - 9)).Wait(), StatusIs(absl::StatusCode::kDataLoss));
  EXPECT_EQ(receiver_.state().stored_number, 1u);
  TANDEM_EXPECT_OK(Send(2, whole).Wait());
  EXPECT_EQ(receiver_.state().stored_position, 12u);
}

// What a follower stores it passes on when it is the primary: no byte that nobody has sent may be part of it.
TEST_F(ReceiverTest, ARecordWithoutItsPaddingIsDamaged) {
  TANDEM_EXPECT_OK(Send(1, StateAt(10)).Wait());
  const std::string whole = PushAt(11);
  ASSERT_EQ(whole.size() % 8, 0u);
  for (size_t missing = 1; missing < 8; ++missing) {
    const std::string cut = whole.substr(0, whole.size() - missing);
    EXPECT_FALSE(ParseRecord(cut, 0).has_value()) << missing;
    EXPECT_THAT(Send(2, cut).Wait(), StatusIs(absl::StatusCode::kDataLoss)) << missing;
  }
  TANDEM_EXPECT_OK(Send(2, whole).Wait());
}

TEST_F(ReceiverTest, ADamagedMessageThatCameTooEarlyFailsAlone) {
  Answer& damaged = Send(2, "no record");
  TANDEM_EXPECT_OK(Send(1, StateAt(10)).Wait());
  EXPECT_THAT(damaged.Wait(), StatusIs(absl::StatusCode::kDataLoss));
  TANDEM_EXPECT_OK(Send(2, PushAt(11)).Wait());
}

TEST_F(ReceiverTest, RecordsThatAreNotTheNextOnesAreRefused) {
  const auto refused = [&](const std::string& payload, const std::string& expected) {
    EXPECT_THAT(Send(receiver_.state().stored_number + 1, payload).Wait(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr(expected)));
  };
  refused(PushAt(1), "the state of the copy must come next");
  TANDEM_EXPECT_OK(Send(1, StateAt(10)).Wait());
  refused(PushAt(10), "position 11");
  refused(PushAt(12), "position 11");
  refused(PushAt(11) + PushAt(13), "position 12");
  refused(StateAt(11), "no second state");
  TANDEM_EXPECT_OK(Send(2, RecordOf(RecordKind::kRows, 10, "rows") + PushAt(11)).Wait());
  TANDEM_EXPECT_OK(Send(3, RecordOf(RecordKind::kEnd, 11, "")).Wait());
  refused(RecordOf(RecordKind::kRows, 11, "rows"), "a copy that is whole");
  EXPECT_EQ(receiver_.state().stored_position, 11u);
  TANDEM_EXPECT_OK(ApplyAll());
  EXPECT_THAT(applied_.bodies(), ::testing::ElementsAre("state", "rows", "push 11", "END"));
  EXPECT_TRUE(receiver_.state().complete);
}

TEST_F(ReceiverTest, MessagesOfAnotherShardPrimaryOrCopyAreRefusedByName) {
  v1::AppendRequest header = Header(1);
  header.set_shard(2);
  EXPECT_THAT(Send(header, StateAt(10)).Wait(), StatusIs(absl::StatusCode::kFailedPrecondition,
                                                         AllOf(HasSubstr("shard 2"), HasSubstr("shard 1"))));
  header = Header(1);
  header.set_follower("e");
  EXPECT_THAT(Send(header, StateAt(10)).Wait(),
              StatusIs(absl::StatusCode::kNotFound, AllOf(HasSubstr("copy e"), HasSubstr("copy f"))));
  header = Header(1);
  header.set_primary("q");
  EXPECT_THAT(Send(header, StateAt(10)).Wait(),
              StatusIs(absl::StatusCode::kNotFound, HasSubstr("primary q")));
  EXPECT_THAT(Send(5, StateAt(10)).Wait(), StatusIs(absl::StatusCode::kInvalidArgument,
                                                    AllOf(HasSubstr("message 5"), HasSubstr("at most 4"))));
  EXPECT_EQ(receiver_.state().stored_number, 0u);
}

TEST_F(ReceiverTest, ARequestThatDoesNotParseIsRefused) {
  const rpc::Method append = AppendMethod(&receiver_);
  const std::string state = StateAt(10);
  const std::string whole = rpc::EncodeBulk(Header(1), Bytes(state)).Flatten();
  for (const std::string& bytes : {std::string("\xff\xff\xff"), whole.substr(0, whole.size() - 1)}) {
    auto call = std::make_shared<testing::TestCall>(Bytes(bytes), absl::InfiniteFuture());
    append.handler(call);
    EXPECT_THAT(call->Wait(),
                StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("tandem.v1.AppendRequest")));
  }
  auto call = std::make_shared<testing::TestCall>(Bytes(whole), absl::InfiniteFuture());
  append.handler(call);
  TANDEM_EXPECT_OK(call->Wait());
  EXPECT_EQ(receiver_.state().stored_position, 10u);
}

TEST_F(ReceiverTest, AnEarlierTermIsAnsweredWithTheLaterOne) {
  receiver_.Raise(4);
  TANDEM_ASSERT_OK_AND_ASSIGN(const v1::AppendResponse answer, Send(1, StateAt(10)).Wait());
  EXPECT_EQ(answer.term(), 4u);
  EXPECT_EQ(answer.stored_number(), 0u);
  EXPECT_EQ(receiver_.state().stored_number, 0u);
}

TEST_F(ReceiverTest, AfterCloseNothingIsStoredAndWhatWasStoredIsApplied) {
  applied_.Hold(true);
  TANDEM_EXPECT_OK(Send(1, StateAt(10) + PushAt(11)).Wait());
  Answer& early = Send(3, PushAt(13));
  receiver_.Close("this copy takes over");
  const auto closed = [](Answer& answer) {
    EXPECT_THAT(answer.Wait(), StatusIs(absl::StatusCode::kUnavailable, HasSubstr("this copy takes over")));
  };
  closed(early);
  closed(Send(2, PushAt(12)));
  applied_.Hold(false);
  TANDEM_EXPECT_OK(ApplyAll());
  EXPECT_THAT(applied_.bodies(), ::testing::ElementsAre("state", "push 11"));
  EXPECT_EQ(receiver_.state().applied_position, 11u);
}

TEST_F(ReceiverTest, ARecordThatCannotBeAppliedFailsTheCopyUntilItIsOpenedAgain) {
  applied_.FailAt("push 11");
  (void)Send(1, StateAt(10) + PushAt(11) + PushAt(12)).Wait();
  ASSERT_TRUE(failed_.WaitFor(kDeadline));
  EXPECT_THAT(failure_, StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("no room")));
  EXPECT_THAT(Send(2, PushAt(13)).Wait(),
              StatusIs(absl::StatusCode::kFailedPrecondition, HasSubstr("no room for the rows")));
  EXPECT_THAT(ApplyAll(), StatusIs(absl::StatusCode::kResourceExhausted));
  receiver_.Drop("it is copied anew");
  receiver_.Open(4, "q", "g");
  v1::AppendRequest header = Header(1);
  header.set_term(4);
  header.set_primary("q");
  header.set_follower("g");
  TANDEM_EXPECT_OK(Send(header, StateAt(20)).Wait());
  TANDEM_EXPECT_OK(ApplyAll());
  EXPECT_THAT(applied_.bodies(), ::testing::ElementsAre("state", "state"));
}

std::string EndAt(uint64_t position) { return RecordOf(RecordKind::kEnd, position, ""); }
std::string ContinueAt(uint64_t position) { return RecordOf(RecordKind::kContinue, position, "continue"); }

TEST_F(ReceiverTest, AWholeCopyContinuesWithAnotherPrimaryBehindWhatItHas) {
  TANDEM_ASSERT_OK(Send(1, StateAt(5) + PushAt(6) + EndAt(6) + PushAt(7)).Wait());
  TANDEM_ASSERT_OK(ApplyAll());
  EXPECT_EQ(receiver_.Reopen(4, "q", "g"), (Lineage{.term = 3, .position = 7}));
  v1::AppendRequest header = Header(0);
  header.set_term(4);
  header.set_primary("q");
  header.set_follower("g");
  // Nothing of the new link is stored.
  const auto& beat = Send(header, "").Wait();
  TANDEM_ASSERT_OK(beat);
  EXPECT_EQ(beat->stored_position(), 0u);
  EXPECT_FALSE(beat->complete());
  header.set_number(1);
  EXPECT_THAT(Send(header, PushAt(9)).Wait(), StatusIs(absl::StatusCode::kInvalidArgument));
  EXPECT_THAT(Send(header, ContinueAt(8)).Wait(), StatusIs(absl::StatusCode::kInvalidArgument));
  const auto& stored = Send(header, PushAt(8) + ContinueAt(8) + PushAt(9)).Wait();
  TANDEM_ASSERT_OK(stored);
  EXPECT_EQ(stored->stored_position(), 9u);
  EXPECT_TRUE(stored->complete());
  TANDEM_ASSERT_OK(ApplyAll());
  EXPECT_EQ(receiver_.state().applied_position, 9u);
  EXPECT_TRUE(receiver_.state().complete);
  EXPECT_EQ(receiver_.state().term, 4u);
  EXPECT_EQ(applied_.bodies(),
            (std::vector<std::string>{"state", "push 6", "END", "push 7", "push 8", "continue", "push 9"}));
}

TEST_F(ReceiverTest, AWholeCopyTakesTheStateOfAnotherPrimaryThatLacksItsRecords) {
  TANDEM_ASSERT_OK(Send(1, StateAt(5) + EndAt(5) + PushAt(6) + PushAt(7)).Wait());
  TANDEM_ASSERT_OK(ApplyAll());
  EXPECT_EQ(receiver_.Reopen(4, "q", "g").position, 7u);
  v1::AppendRequest header = Header(1);
  header.set_term(4);
  header.set_primary("q");
  header.set_follower("g");
  TANDEM_ASSERT_OK(Send(header, StateAt(6)).Wait());
  TANDEM_ASSERT_OK(ApplyAll());
  EXPECT_EQ(receiver_.state().applied_position, 6u);
  EXPECT_FALSE(receiver_.state().complete);
  // It has nothing to continue with until it is whole again.
  EXPECT_EQ(receiver_.Reopen(5, "r", "h"), Lineage());
  header.set_number(2);
  TANDEM_ASSERT_OK(Send(header, PushAt(7) + EndAt(7)).Wait());
  TANDEM_ASSERT_OK(ApplyAll());
  EXPECT_EQ(receiver_.Reopen(5, "r", "h"), (Lineage{.term = 4, .position = 7}));
}

TEST_F(ReceiverTest, TheTailHasTheLastRecordsOfTheLogWithoutThoseOfTheCopy) {
  TANDEM_ASSERT_OK(Send(1, StateAt(5) + PushAt(6) + EndAt(6) + PushAt(7) + PushAt(8)).Wait());
  TANDEM_ASSERT_OK(Send(2, PushAt(9)).Wait());
  const LogTail tail = receiver_.TakeTail();
  EXPECT_EQ(tail.last(), 9u);
  EXPECT_FALSE(tail.Reaches(5));
  EXPECT_TRUE(tail.Reaches(6));
  EXPECT_TRUE(tail.Reaches(9));
  EXPECT_FALSE(tail.Reaches(10));
  std::string records;
  for (const Slice& slice : tail.Between(7, 9)) absl::StrAppend(&records, slice.view());
  EXPECT_EQ(records, PushAt(8) + PushAt(9));
}

TEST(LogTail, ForgetsOldRecordsAndThoseBeforeAGap) {
  const auto slice = [](uint64_t position) { return Slice::FromString(PushAt(position)); };
  LogTail tail(2 * PushAt(1).size());
  tail.Restart(3);
  EXPECT_TRUE(tail.Reaches(3));
  EXPECT_FALSE(tail.Reaches(2));
  for (uint64_t position : {4, 5, 6}) tail.Add(position, position, slice(position));
  EXPECT_TRUE(tail.Reaches(4));
  EXPECT_FALSE(tail.Reaches(3));
  tail.Add(8, 8, slice(8));
  EXPECT_TRUE(tail.Reaches(7));
  EXPECT_FALSE(tail.Reaches(6));
}

}  // namespace
}  // namespace tandem::ps

// SPDX-License-Identifier: Apache-2.0
#include "ps/failover/shipped_log.h"

#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "absl/base/thread_annotations.h"
#include "absl/strings/str_cat.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/timed_wait.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/log/record.h"
#include "rpc/wire/bulk_codec.h"
#include "tandem/v1/failover.pb.h"
#include "tests/testing/status_matchers.h"

namespace tandem::ps {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr absl::Duration kWaitAtMost = absl::Minutes(1);

// The calls of one link, which the test answers.
class FakeCopy {
 public:
  struct Message {
    v1::AppendRequest header;
    std::vector<std::string> bodies;  // of its records
    std::vector<uint64_t> positions;
    rpc::Channel::Done done;
    absl::Duration timeout;
  };
  class Link : public rpc::Channel {
   public:
    explicit Link(FakeCopy* copy) : copy_(*copy) {}
    ~Link() override { copy_.CancelAll(); }
    void CallAsync(absl::string_view method, Bytes request, const rpc::CallOptions& options,
                   Done done) override {
      EXPECT_EQ(method, "/tandem.v1.Failover/Append");
      copy_.Add(request, options.timeout, std::move(done));
    }
    absl::string_view transport() const override { return "fake"; }
    const std::string& target() const override { return target_; }

   private:
    FakeCopy& copy_;
    const std::string target_ = "fake";
  };
  std::unique_ptr<rpc::Channel> Connect() { return std::make_unique<Link>(this); }

  // Waits for the next message that is no beat. Beats are answered at once, unless `silent`.
  std::optional<Message> Next() {
    absl::MutexLock lock(&mutex_);
    const auto has = [this]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return !messages_.empty(); };
    if (!AwaitFor(&mutex_, absl::Condition(&has), kWaitAtMost)) return std::nullopt;
    Message message = std::move(messages_.front());
    messages_.pop_front();
    return message;
  }
  // Says that everything up to the message is stored.
  void Answer(Message message, uint64_t term = 1) {
    v1::AppendResponse response;
    {
      absl::MutexLock lock(&mutex_);
      stored_.set_stored_number(std::max(stored_.stored_number(), message.header.number()));
      for (const uint64_t position : message.positions) {
        stored_.set_stored_position(std::max(stored_.stored_position(), position));
      }
      stored_.set_term(term);
      response = stored_;
    }
    std::move(message.done)(Bytes(response.SerializeAsString()));
  }
  void AnswerNext() {
    std::optional<Message> next = Next();
    ASSERT_TRUE(next.has_value());
    Answer(*std::move(next));
  }
  // Beats fail with `error` from now on.
  void Fail(const absl::Status& error) {
    absl::MutexLock lock(&mutex_);
    fails_ = error;
  }
  size_t waiting() const {
    absl::MutexLock lock(&mutex_);
    return messages_.size();
  }
  // Answers tell this clock, and want a beat so often, from now on.
  void Want(uint64_t clock, uint32_t beat_ms) {
    absl::MutexLock lock(&mutex_);
    stored_.set_clock(clock);
    stored_.set_beat_ms(beat_ms);
  }
  // Waits for a beat with this property.
  void AwaitBeatWith(const std::function<bool(const v1::AppendRequest&)>& property) {
    absl::MutexLock lock(&mutex_);
    const auto has = [&]()
                         ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return beats_ > 0 && property(last_beat_); };
    EXPECT_TRUE(AwaitFor(&mutex_, absl::Condition(&has), kWaitAtMost));
  }
  void AwaitBeat() {
    absl::MutexLock lock(&mutex_);
    const auto more = [this, before = beats_]()
                          ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return beats_ > before; };
    EXPECT_TRUE(AwaitFor(&mutex_, absl::Condition(&more), kWaitAtMost));
  }

 private:
  void Add(const Bytes& request, absl::Duration timeout, rpc::Channel::Done done) {
    Message message;
    message.timeout = timeout;
    Bytes payload;
    ASSERT_TRUE(rpc::DecodeBulk(request, &message.header, &payload).ok());
    const std::string bytes = payload.Flatten();
    for (size_t at = 0; at < bytes.size();) {
      const std::optional<Record> record = ParseRecord(bytes, at);
      ASSERT_TRUE(record.has_value());
      message.bodies.emplace_back(record->body);
      message.positions.push_back(record->position);
      at += record->bytes;
    }
    v1::AppendResponse stored;
    absl::Status fails;
    {
      absl::MutexLock lock(&mutex_);
      if (message.header.number() != 0) {
        message.done = std::move(done);
        messages_.push_back(std::move(message));
        return;
      }
      ++beats_;
      last_beat_ = message.header;
      stored = stored_;
      fails = fails_;
    }
    if (!fails.ok()) return std::move(done)(fails);
    std::move(done)(Bytes(stored.SerializeAsString()));
  }
  void CancelAll() {
    std::deque<Message> messages;
    {
      absl::MutexLock lock(&mutex_);
      messages.swap(messages_);
    }
    for (Message& message : messages) std::move(message.done)(absl::CancelledError("the channel is gone"));
  }

  mutable absl::Mutex mutex_;
  v1::AppendResponse stored_ ABSL_GUARDED_BY(mutex_);
  int beats_ ABSL_GUARDED_BY(mutex_) = 0;
  v1::AppendRequest last_beat_ ABSL_GUARDED_BY(mutex_);
  absl::Status fails_ ABSL_GUARDED_BY(mutex_);
  std::deque<Message> messages_ ABSL_GUARDED_BY(mutex_);
};

class ShippedLogTest : public ::testing::Test {
 protected:
  ShippedLog::Options OptionsOf(int min_copies = 1) {
    ShippedLog::Options options{.shard = 1, .term = 1, .primary = "p", .min_copies = min_copies};
    options.message_bytes = 1000;
    options.max_in_flight = 3;
    options.beat = absl::Milliseconds(5);
    options.unusual = absl::ZeroDuration();
    options.events = {
        .on_complete = [this](const std::string& id) { See("complete " + id); },
        .on_caught_up = [this](const std::string& id) { See("caught up " + id); },
        .on_heard = [this](const std::string& id, const ClockReading&) { See("heard " + id); },
        .on_higher_term = [this](const std::string& id,
                                 uint64_t term) { See(absl::StrCat("term ", term, " of ", id)); },
        .on_gone =
            [this](const std::string& id, const absl::Status& why) {
              {
                absl::MutexLock lock(&mutex_);
                gone_ = why;
              }
              See("gone " + id);
            }};
    return options;
  }
  // Begins a link whose copy has stored the state and END.
  void LinkWhole(ShippedLog& log, FakeCopy& copy, const std::string& id) {
    TANDEM_ASSERT_OK(log.StartLink({.id = id, .address = "host:1"}, copy.Connect()));
    TANDEM_ASSERT_OK_AND_ASSIGN(const uint64_t position, log.BeginCopy(id));
    std::string state;
    AppendRecord(RecordKind::kState, position, 0, Bytes(std::string("state")), &state);
    TANDEM_ASSERT_OK(log.SendState(id, state));
    TANDEM_ASSERT_OK(log.EndCopy(id));
    // The state and END come in one message or in two.
    while (!Saw("complete " + id) && !HasFatalFailure()) copy.AnswerNext();
  }
  void RequireWhole(ShippedLog& log, FakeCopy& copy, const std::string& id) {
    LinkWhole(log, copy, id);
    TANDEM_ASSERT_OK(log.Require(id));
    ASSERT_TRUE(Await("caught up " + id));
  }
  uint64_t Append(ShippedLog& log, const std::string& body) {
    const std::shared_ptr<TimedNotification> durable = std::make_shared<TimedNotification>();
    durable_.push_back(durable);
    return log.Append(RecordKind::kPush, Bytes(body), nullptr, [this, durable](const absl::Status& status) {
      {
        absl::MutexLock lock(&mutex_);
        statuses_.push_back(status);
      }
      durable->Notify();
    });
  }
  bool IsDurable(size_t record) const { return durable_[record]->HasBeenNotified(); }
  bool AwaitDurable(size_t record) const { return durable_[record]->WaitFor(kWaitAtMost); }

  void See(const std::string& event) {
    absl::MutexLock lock(&mutex_);
    seen_.insert(event);
  }
  bool Saw(const std::string& event) {
    absl::MutexLock lock(&mutex_);
    return seen_.contains(event);
  }
  bool Await(const std::string& event) {
    absl::MutexLock lock(&mutex_);
    const auto has = [&]() ABSL_EXCLUSIVE_LOCKS_REQUIRED(mutex_) { return seen_.contains(event); };
    return AwaitFor(&mutex_, absl::Condition(&has), kWaitAtMost);
  }

  absl::Mutex mutex_;
  std::set<std::string> seen_ ABSL_GUARDED_BY(mutex_);
  absl::Status gone_ ABSL_GUARDED_BY(mutex_);
  std::vector<absl::Status> statuses_ ABSL_GUARDED_BY(mutex_);
  std::vector<std::shared_ptr<TimedNotification>> durable_;
};

TEST_F(ShippedLogTest, WithoutFollowersEverythingIsDurableAtOnce) {
  ShippedLog log(OptionsOf());
  EXPECT_EQ(Append(log, "a"), 1u);
  EXPECT_EQ(Append(log, "b"), 2u);
  EXPECT_TRUE(IsDurable(1));
  EXPECT_EQ(log.durable_position(), 2u);
  EXPECT_EQ(log.waiting_for(), "");
}

TEST_F(ShippedLogTest, ARecordIsDurableWhenEveryRequiredCopyHasStoredIt) {
  FakeCopy one, two, learner;
  ShippedLog log(OptionsOf());
  RequireWhole(log, one, "1");
  RequireWhole(log, two, "2");
  LinkWhole(log, learner, "3");
  EXPECT_EQ(Append(log, "a"), 1u);
  one.AnswerNext();
  one.AwaitBeat();
  EXPECT_FALSE(IsDurable(0));
  EXPECT_THAT(log.waiting_for(), HasSubstr("the follower at host:1 has stored record 0 of 1"));
  two.AnswerNext();
  EXPECT_TRUE(AwaitDurable(0));
  // A record that only the released copy has not stored becomes durable.
  Append(log, "b");
  one.AnswerNext();
  one.AwaitBeat();
  EXPECT_FALSE(IsDurable(1));
  log.Release("2");
  EXPECT_TRUE(IsDurable(1));
  EXPECT_EQ(log.durable_position(), 2u);
}

TEST_F(ShippedLogTest, RecordsOnTheirWayAreNothingUnusual) {
  FakeCopy copy;
  ShippedLog::Options options = OptionsOf();
  options.unusual = absl::InfiniteDuration();
  ShippedLog log(options);
  RequireWhole(log, copy, "1");
  Append(log, "a");
  EXPECT_FALSE(IsDurable(0));
  EXPECT_EQ(log.waiting_for(), "");
}

TEST_F(ShippedLogTest, WithTooFewCopiesInSyncNothingIsDurable) {
  FakeCopy copy;
  ShippedLog log(OptionsOf(/*min_copies=*/2));
  Append(log, "a");
  EXPECT_FALSE(IsDurable(0));
  EXPECT_THAT(log.waiting_for(), HasSubstr("--min-copies"));
  RequireWhole(log, copy, "1");
  EXPECT_FALSE(IsDurable(0));
  log.Confirm(1);
  EXPECT_TRUE(IsDurable(0));
}

TEST_F(ShippedLogTest, MessagesCarryWhatWaitsAndAtMostSoManyAreUnderWay) {
  FakeCopy copy;
  ShippedLog log(OptionsOf());
  RequireWhole(log, copy, "1");
  constexpr size_t kRecords = 50;
  std::vector<std::string> expected;
  for (size_t i = 0; i < kRecords; ++i) {
    expected.push_back(absl::StrCat("record ", i, std::string(80, 'x')));
    Append(log, expected.back());
  }
  std::vector<std::string> bodies;
  uint64_t number = 0;
  size_t messages = 0;
  while (bodies.size() < kRecords) {
    EXPECT_LE(copy.waiting(), 3u);
    std::optional<FakeCopy::Message> message = copy.Next();
    ASSERT_TRUE(message.has_value());
    EXPECT_GT(message->header.number(), number);
    number = message->header.number();
    ++messages;
    bodies.insert(bodies.end(), message->bodies.begin(), message->bodies.end());
    EXPECT_LE(message->bodies.size(), 10u);
    copy.Answer(*std::move(message));
  }
  EXPECT_EQ(bodies, expected);
  EXPECT_GE(messages, kRecords / 10);
  EXPECT_TRUE(AwaitDurable(kRecords - 1));
}

TEST_F(ShippedLogTest, AMessageWhoseCallFailsIsSentAgainUnderItsNumber) {
  FakeCopy copy;
  ShippedLog log(OptionsOf());
  RequireWhole(log, copy, "1");
  Append(log, "a");
  std::optional<FakeCopy::Message> first = copy.Next();
  ASSERT_TRUE(first.has_value());
  for (const absl::Status& error :
       {absl::UnavailableError("the connection was lost"), absl::DeadlineExceededError("no answer")}) {
    const uint64_t number = first->header.number();
    std::move(first->done)(error);
    first = copy.Next();
    ASSERT_TRUE(first.has_value());
    EXPECT_EQ(first->header.number(), number);
    EXPECT_THAT(first->bodies, ElementsAre("a"));
  }
  EXPECT_FALSE(IsDurable(0));
  copy.Answer(*std::move(first));
  EXPECT_TRUE(AwaitDurable(0));
}

TEST_F(ShippedLogTest, AMessageForWhichACopyHasNoRoomIsSentAgainUnlessItIsAlone) {
  FakeCopy copy;
  ShippedLog log(OptionsOf());
  RequireWhole(log, copy, "1");
  Append(log, std::string(1000, 'a'));
  std::optional<FakeCopy::Message> first = copy.Next();
  ASSERT_TRUE(first.has_value());
  Append(log, std::string(1000, 'b'));
  std::optional<FakeCopy::Message> second = copy.Next();
  ASSERT_TRUE(second.has_value());
  const uint64_t number = second->header.number();
  std::move(second->done)(absl::ResourceExhaustedError("await answers before sending more"));
  second = copy.Next();
  ASSERT_TRUE(second.has_value());
  EXPECT_EQ(second->header.number(), number);
  EXPECT_FALSE(Saw("gone 1"));

  copy.Answer(*std::move(first));
  ASSERT_TRUE(AwaitDurable(0));
  std::move(second->done)(absl::ResourceExhaustedError("the message is too large"));
  ASSERT_TRUE(Await("gone 1"));
}

TEST_F(ShippedLogTest, AMessageThatTheCopyHasAndAcknowledgesLaterIsNotSentAgain) {
  FakeCopy copy;
  ShippedLog log(OptionsOf());
  RequireWhole(log, copy, "1");
  Append(log, "a");
  std::optional<FakeCopy::Message> message = copy.Next();
  ASSERT_TRUE(message.has_value());
  v1::AppendResponse not_yet;
  not_yet.set_term(1);
  not_yet.set_stored_number(message->header.number() - 1);
  std::exchange(message->done, [](absl::StatusOr<Bytes>) {})(Bytes(not_yet.SerializeAsString()));
  for (int i = 0; i < 10; ++i) copy.AwaitBeat();
  EXPECT_EQ(copy.waiting(), 0u);
  EXPECT_FALSE(IsDurable(0));
  copy.Answer(*std::move(message));  // a beat's answer says so
  EXPECT_TRUE(AwaitDurable(0));
}

TEST_F(ShippedLogTest, ALearnerIsCompleteHoweverMuchIsOnItsWay) {
  FakeCopy copy;
  ShippedLog::Options options = OptionsOf();
  options.message_bytes = 100;
  ShippedLog log(options);
  TANDEM_ASSERT_OK(log.StartLink({.id = "1"}, copy.Connect()));
  TANDEM_ASSERT_OK_AND_ASSIGN(const uint64_t position, log.BeginCopy("1"));
  std::string state;
  AppendRecord(RecordKind::kState, position, 0, Bytes(std::string("state")), &state);
  TANDEM_ASSERT_OK(log.SendState("1", state));
  TANDEM_ASSERT_OK(log.EndCopy("1"));
  for (int i = 0; i < 10 && !Saw("complete 1"); ++i) {
    for (int more = 0; more < 3; ++more) Append(log, std::string(300, 'x'));
    copy.AnswerNext();
  }
  EXPECT_TRUE(Saw("complete 1"));
}

TEST_F(ShippedLogTest, LargeMessagesHaveMoreTime) {
  FakeCopy copy;
  ShippedLog log(OptionsOf());
  RequireWhole(log, copy, "1");
  Append(log, "small");
  std::optional<FakeCopy::Message> small = copy.Next();
  ASSERT_TRUE(small.has_value());
  copy.Answer(*std::move(small));
  Append(log, std::string(size_t{32} << 20, 'x'));
  std::optional<FakeCopy::Message> large = copy.Next();
  ASSERT_TRUE(large.has_value());
  EXPECT_GE(large->timeout, absl::Seconds(6));
  copy.Answer(*std::move(large));
}

TEST_F(ShippedLogTest, AnAnswerToABeatSettlesAMessageWhoseAnswerWasLost) {
  FakeCopy copy;
  ShippedLog log(OptionsOf());
  RequireWhole(log, copy, "1");
  Append(log, "a");
  std::optional<FakeCopy::Message> message = copy.Next();
  ASSERT_TRUE(message.has_value());
  rpc::Channel::Done lost = std::exchange(message->done, [](absl::StatusOr<Bytes>) {});
  copy.Answer(*std::move(message));  // it is stored, and nobody was told
  EXPECT_TRUE(AwaitDurable(0));
  std::move(lost)(absl::UnavailableError("the connection was lost"));
  copy.AwaitBeat();
  EXPECT_EQ(copy.waiting(), 0u);
}

TEST_F(ShippedLogTest, ALinkEndsWhenItsCopyIsGoneRefusesAMessageOrSaysWhatCannotBe) {
  struct Case {
    absl::StatusOr<Bytes> answer;
    absl::StatusCode code;
  };
  v1::AppendResponse impossible;
  impossible.set_stored_number(99);
  v1::AppendResponse ahead;
  ahead.set_stored_position(99);
  const Case cases[] = {
      {absl::NotFoundError("that copy has ended"), absl::StatusCode::kNotFound},
      {absl::DataLossError("damaged"), absl::StatusCode::kDataLoss},
      {Bytes(std::string("\xff\xff")), absl::StatusCode::kInternal},
      {Bytes(impossible.SerializeAsString()), absl::StatusCode::kInternal},
      {Bytes(ahead.SerializeAsString()), absl::StatusCode::kInternal},
  };
  for (const Case& one : cases) {
    SCOPED_TRACE(one.code);
    const std::string id = absl::StrCat("copy ", &one - cases);
    FakeCopy copy;
    ShippedLog log(OptionsOf());
    RequireWhole(log, copy, id);
    durable_.clear();
    Append(log, "a");
    std::optional<FakeCopy::Message> message = copy.Next();
    ASSERT_TRUE(message.has_value());
    std::move(message->done)(one.answer);
    ASSERT_TRUE(Await("gone " + id));
    {
      absl::MutexLock lock(&mutex_);
      EXPECT_EQ(gone_.code(), one.code) << gone_;
    }
    // It is required until it is released: the document may still name it.
    EXPECT_FALSE(IsDurable(0));
    log.Release(id);
    log.DropLink(id);
    EXPECT_TRUE(IsDurable(0));
    EXPECT_TRUE(log.links().empty());
  }
}

TEST_F(ShippedLogTest, ACopyWithALaterTermTellsThePrimaryThatItIsDeposed) {
  FakeCopy copy;
  ShippedLog log(OptionsOf());
  RequireWhole(log, copy, "1");
  Append(log, "a");
  std::optional<FakeCopy::Message> message = copy.Next();
  ASSERT_TRUE(message.has_value());
  copy.Answer(*std::move(message), /*term=*/7);
  EXPECT_TRUE(Await("term 7 of 1"));
  EXPECT_FALSE(IsDurable(0));
}

TEST_F(ShippedLogTest, ALearnerForWhichTooMuchWaitsIsDroppedAndHoldsNobodyUp) {
  FakeCopy learner;
  ShippedLog::Options options = OptionsOf();
  options.max_link_bytes = 5000;
  ShippedLog log(options);
  LinkWhole(log, learner, "1");
  for (size_t i = 0; i < 100; ++i) {
    Append(log, std::string(100, 'x'));
    EXPECT_TRUE(IsDurable(i));
  }
  ASSERT_TRUE(Await("gone 1"));
  absl::MutexLock lock(&mutex_);
  EXPECT_THAT(gone_, StatusIs(absl::StatusCode::kResourceExhausted, HasSubstr("at most 5000 may wait")));
}

TEST_F(ShippedLogTest, TheLinkToACopyThatDoesNotAnswerEndsUnlessItIsRequired) {
  for (const bool required : {false, true}) {
    const std::string id = required ? "required" : "learner";
    FakeCopy copy;
    ShippedLog::Options options = OptionsOf();
    options.max_silence = absl::Seconds(2);
    ShippedLog log(options);
    LinkWhole(log, copy, id);
    if (required) {
      TANDEM_ASSERT_OK(log.Require(id));
    }
    copy.Fail(absl::UnavailableError("connection refused"));
    if (!required) {
      ASSERT_TRUE(Await("gone " + id));
      absl::MutexLock lock(&mutex_);
      EXPECT_THAT(gone_, StatusIs(absl::StatusCode::kDeadlineExceeded, HasSubstr("has not answered for 2s")));
    } else {
      const absl::Time heard = log.links()[0].heard;
      while (MonotonicNow() - heard < absl::Milliseconds(2200)) copy.AwaitBeat();
      EXPECT_FALSE(Saw("gone " + id));
      log.Release(id);
      ASSERT_TRUE(Await("gone " + id));
    }
  }
}

TEST_F(ShippedLogTest, PushesWaitForSpaceWhileARequiredCopyIsSlow) {
  FakeCopy copy;
  ShippedLog::Options options = OptionsOf();
  options.max_queued_bytes = 100;
  options.max_link_bytes = 50;  // of no effect for a copy that is required
  ShippedLog log(options);
  RequireWhole(log, copy, "1");
  std::shared_ptr<ChangeLog::Space> space = log.TakeSpace(1000);
  ASSERT_NE(space, nullptr);  // one record always fits
  log.Append(RecordKind::kPush, Bytes(std::string(1000, 'x')), std::move(space), nullptr);
  EXPECT_EQ(log.TakeSpace(10), nullptr);
  TimedNotification granted;
  log.AwaitSpace(10, [&](std::shared_ptr<ChangeLog::Space>) { granted.Notify(); });
  EXPECT_EQ(log.space_waits(), 1u);
  EXPECT_FALSE(granted.HasBeenNotified());
  copy.AnswerNext();
  EXPECT_TRUE(granted.WaitFor(kWaitAtMost));
}

TEST_F(ShippedLogTest, ACopyBeginsWithItsStateAndRowsComeBehindTheRecordsBeforeThem) {
  FakeCopy copy;
  ShippedLog log(OptionsOf());
  TANDEM_ASSERT_OK(log.StartLink({.id = "1"}, copy.Connect()));
  copy.AwaitBeat();
  Append(log, "before");
  TANDEM_ASSERT_OK_AND_ASSIGN(const uint64_t position, log.BeginCopy("1"));
  EXPECT_EQ(position, 1u);
  Append(log, "after the state");
  std::string state;
  AppendRecord(RecordKind::kState, position, 0, Bytes(std::string("state")), &state);
  TANDEM_ASSERT_OK(log.SendState("1", state));
  const auto rows = [&] {
    std::string record;
    AppendRecord(RecordKind::kRows, 2, 0, Bytes(std::string("rows")), &record);
    return std::vector<std::string>{record};
  };
  TimedNotification sent;
  TANDEM_ASSERT_OK(log.SendCopied("1", rows, [&](const absl::Status& status) {
    TANDEM_EXPECT_OK(status);
    sent.Notify();
  }));
  Append(log, "after the rows");
  TANDEM_ASSERT_OK(log.EndCopy("1"));
  std::vector<std::string> bodies;
  while (bodies.size() < 5) {
    std::optional<FakeCopy::Message> message = copy.Next();
    ASSERT_TRUE(message.has_value());
    bodies.insert(bodies.end(), message->bodies.begin(), message->bodies.end());
    EXPECT_FALSE(Saw("complete 1"));
    copy.Answer(*std::move(message));
  }
  EXPECT_THAT(bodies, ElementsAre("state", "after the state", "rows", "after the rows", ""));
  EXPECT_TRUE(sent.WaitFor(kWaitAtMost));
  EXPECT_TRUE(Await("complete 1"));
}

TEST_F(ShippedLogTest, ACopyThatIsRequiredIsCaughtUpOnceItHasWhatWasDurable) {
  FakeCopy copy;
  ShippedLog log(OptionsOf());
  LinkWhole(log, copy, "1");
  Append(log, "a");
  EXPECT_TRUE(IsDurable(0));
  std::optional<FakeCopy::Message> message = copy.Next();
  ASSERT_TRUE(message.has_value());
  TANDEM_ASSERT_OK(log.Require("1"));
  copy.AwaitBeat();
  EXPECT_FALSE(Saw("caught up 1"));
  copy.Answer(*std::move(message));
  EXPECT_TRUE(Await("caught up 1"));
}

TEST_F(ShippedLogTest, StopFailsWhatIsNotDurableAndDroppedCopiesEndTheirWaits) {
  FakeCopy copy, other;
  ShippedLog log(OptionsOf());
  RequireWhole(log, copy, "1");
  TANDEM_ASSERT_OK(log.StartLink({.id = "2"}, other.Connect()));
  TimedNotification over;
  TANDEM_ASSERT_OK(log.SendCopied(
      "2", [] { return std::vector<std::string>{"rows"}; },
      [&](const absl::Status& status) {
        EXPECT_FALSE(status.ok());
        over.Notify();
      }));
  log.DropLink("2");
  EXPECT_TRUE(over.WaitFor(kWaitAtMost));
  Append(log, "a");
  log.Stop();
  EXPECT_TRUE(AwaitDurable(0));
  Append(log, "b");
  absl::MutexLock lock(&mutex_);
  EXPECT_THAT(statuses_, ElementsAre(StatusIs(absl::StatusCode::kUnavailable, HasSubstr("not the primary")),
                                     StatusIs(absl::StatusCode::kUnavailable, HasSubstr("not the primary"))));
  EXPECT_THAT(log.StartLink({.id = "3"}, nullptr),
              StatusIs(absl::StatusCode::kCancelled, HasSubstr("stopped")));
}

TEST_F(ShippedLogTest, MessagesReturnTheLargestClockThatTheCopyHasTold) {
  FakeCopy a;
  ShippedLog log(OptionsOf());
  LinkWhole(log, a, "a");
  a.AwaitBeatWith([](const v1::AppendRequest& beat) { return beat.echo() == 0; });
  a.Want(/*clock=*/70, /*beat_ms=*/0);
  a.AwaitBeatWith([](const v1::AppendRequest& beat) { return beat.echo() == 70; });
  a.Want(/*clock=*/60, /*beat_ms=*/0);
  a.AwaitBeat();
  a.AwaitBeat();
  a.AwaitBeatWith([](const v1::AppendRequest& beat) { return beat.echo() == 70; });
  Append(log, "one");
  std::optional<FakeCopy::Message> message = a.Next();
  ASSERT_TRUE(message.has_value());
  EXPECT_EQ(message->header.echo(), 70u);
  EXPECT_EQ(message->header.position(), log.last_position());
  a.Answer(*std::move(message));
}

TEST_F(ShippedLogTest, APrimaryThatHasNotHeardARequiredCopyForTheLeaseTellsTheOthersSo) {
  FakeCopy a, b;
  ShippedLog::Options options = OptionsOf();
  options.lease = absl::Milliseconds(200);
  ShippedLog log(options);
  RequireWhole(log, a, "a");
  LinkWhole(log, b, "b");
  const auto leads = [](const v1::AppendRequest& beat) { return beat.leads(); };
  const auto may_not_lead = [](const v1::AppendRequest& beat) { return !beat.leads(); };
  b.AwaitBeatWith(leads);
  a.Fail(absl::UnavailableError("the connection was lost"));
  b.AwaitBeatWith(may_not_lead);
  a.Fail(absl::OkStatus());
  b.AwaitBeatWith(leads);
  // A copy that cannot take over does not matter.
  a.Fail(absl::UnavailableError("the connection was lost"));
  b.AwaitBeatWith(may_not_lead);
  log.Release("a");
  b.AwaitBeatWith(leads);
  // Neither does one whose link has ended, once pushes do not wait for it.
  TANDEM_ASSERT_OK(log.Require("b"));
  log.FailLink("b", absl::InternalError("its copying has failed"));
  a.Fail(absl::OkStatus());
  a.AwaitBeatWith(may_not_lead);
  log.Release("b");
  a.AwaitBeatWith(leads);
  // A server that does not serve, or hands its shard over, claims nothing.
  log.SetMayLead(false);
  a.AwaitBeatWith(may_not_lead);
}

TEST_F(ShippedLogTest, ACopyThatIsReadGetsBeatsAsOftenAsItWants) {
  FakeCopy a;
  ShippedLog::Options options = OptionsOf();
  options.beat = absl::Minutes(10);
  options.lease = absl::Hours(1);
  ShippedLog log(options);
  LinkWhole(log, a, "a");
  a.Want(/*clock=*/1, /*beat_ms=*/5);
  Append(log, "one");
  a.AnswerNext();  // the answer makes the next beat due
  a.AwaitBeat();
  a.AwaitBeat();
}

}  // namespace
}  // namespace tandem::ps

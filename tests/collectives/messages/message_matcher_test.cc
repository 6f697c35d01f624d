// SPDX-License-Identifier: Apache-2.0
// The matcher of several ranks, connected by queues that deliver frames in any interleaving.

#include "collectives/messages/message_matcher.h"

#include <algorithm>
#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <optional>
#include <random>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/testing/status_matchers.h"

namespace tandem::collectives {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr MessageMatcher::Limits kLimits = {
    .credit = 100, .largest_eager = 40, .overhead = 4, .credit_portion = 25, .spare = 200};

struct Frame {
  enum class Type { kEager, kRequest, kGrant, kRefusal, kPayload, kCredit } type;
  MessageMatcher::Head head;
  uint64_t id = 0;
  uint64_t bytes = 0;
  std::string data;
};

// A send or recv with its buffer.
struct Message : MessageTransfer {
  Message(const Operation& operation, std::string text) : MessageTransfer(operation), text(std::move(text)) {
    if (this->operation.kind == OpKind::kSend) {
      this->operation.in.data = this->text.data();
    } else {
      this->operation.out.data = this->text.data();
    }
  }
  std::string text;
  std::optional<absl::StatusOr<int>> result;
};

class Rank : private MessageMatcher::Transport {
 public:
  Rank(int rank, int world, std::vector<std::vector<std::deque<Frame>>>* wires)
      : matcher("g", rank, world, kLimits, this), rank_(rank), wires_(*wires) {}

  Message* Send(int to, uint32_t tag, const std::string& text) {
    Operation operation;
    operation.kind = OpKind::kSend;
    operation.root = to;
    operation.tag = tag;
    operation.in.count = text.size();
    Message* const send = Add(operation, text);
    if (to == rank_) {
      matcher.SendToSelf(send);
      return send;
    }
    send->id = ++next_id_;
    const MessageMatcher::Head head = matcher.Send(send);
    if (head.announced) {
      wires_[rank_][to].push_back({Frame::Type::kRequest, head});
    } else {
      wires_[rank_][to].push_back({Frame::Type::kEager, head, 0, head.bytes, text});
      Finish(send, rank_);
    }
    return send;
  }

  Message* Recv(int from, uint32_t tag, size_t bytes) {
    Operation operation;
    operation.kind = OpKind::kRecv;
    operation.root = from;
    operation.tag = tag;
    operation.out.count = bytes;
    Message* const recv = Add(operation, std::string(bytes, '?'));
    matcher.Receive(recv);
    return recv;
  }

  // Handles the next frame from rank `from`, in pieces of at most `piece` bytes. Returns false if the matcher
  // does not accept it.
  bool Handle(int from, size_t piece) {
    const Frame frame = std::move(wires_[from][rank_].front());
    wires_[from][rank_].pop_front();
    switch (frame.type) {
      case Frame::Type::kEager:
        if (!matcher.BeginEager(from, frame.head)) return false;
        Arrives(from, frame.data);
        return true;
      case Frame::Type::kRequest:
        matcher.Announced(from, frame.head);
        return true;
      case Frame::Type::kGrant:
      case Frame::Type::kRefusal: {
        auto* const send = static_cast<Message*>(matcher.TakeAnnounced(from, frame.id));
        if (send == nullptr) return false;
        size_t at = 0;
        do {
          if (frame.type == Frame::Type::kRefusal) break;
          const std::string data = send->text.substr(at, piece);
          wires_[rank_][from].push_back({Frame::Type::kPayload, {}, frame.id, data.size(), data});
          at += data.size();
        } while (at < send->bytes);
        Finish(send, rank_);
        return true;
      }
      case Frame::Type::kPayload:
        if (!matcher.BeginGranted(from, frame.id, frame.bytes)) return false;
        Arrives(from, frame.data);
        return true;
      case Frame::Type::kCredit:
        return matcher.CreditReturned(from, frame.bytes);
    }
    return false;
  }

  MessageMatcher matcher;

 private:
  Message* Add(const Operation& operation, const std::string& text) {
    messages_.push_back(std::make_unique<Message>(operation, text));
    return messages_.back().get();
  }
  void Arrives(int from, const std::string& data) {
    char* const to = matcher.Destination(from);
    if (to != nullptr) std::memcpy(to, data.data(), data.size());
    matcher.Complete(from);
  }
  void Finish(MessageTransfer* transfer, absl::StatusOr<int> result) override {
    auto* const message = static_cast<Message*>(transfer);
    ASSERT_FALSE(message->result.has_value()) << "ended twice";
    message->result = std::move(result);
  }
  void Answer(int to, uint64_t id, bool wanted) override {
    wires_[rank_][to].push_back({wanted ? Frame::Type::kGrant : Frame::Type::kRefusal, {}, id});
  }
  void ReturnCredit(int to, uint64_t bytes) override {
    wires_[rank_][to].push_back({Frame::Type::kCredit, {}, 0, bytes});
  }

  const int rank_;
  uint64_t next_id_ = 0;
  std::vector<std::vector<std::deque<Frame>>>& wires_;  // [from][to]
  std::vector<std::unique_ptr<Message>> messages_;
};

struct Group {
  explicit Group(int world) : wires(world, std::vector<std::deque<Frame>>(world)) {
    for (int rank = 0; rank < world; ++rank) ranks.push_back(std::make_unique<Rank>(rank, world, &wires));
  }
  Rank& operator[](int rank) { return *ranks[rank]; }
  // Delivers all frames, in a random interleaving of the wires.
  void Deliver(std::mt19937* random) {
    while (DeliverOne(random)) {
    }
  }
  bool DeliverOne(std::mt19937* random) {
    std::vector<std::pair<int, int>> ready;
    for (size_t from = 0; from < wires.size(); ++from) {
      for (size_t to = 0; to < wires.size(); ++to) {
        if (!wires[from][to].empty()) ready.emplace_back(from, to);
      }
    }
    if (ready.empty()) return false;
    const auto [from, to] = ready[(*random)() % ready.size()];
    EXPECT_TRUE(ranks[to]->Handle(from, 1 + (*random)() % 64)) << from << " to " << to;
    return true;
  }
  std::vector<std::vector<std::deque<Frame>>> wires;
  std::vector<std::unique_ptr<Rank>> ranks;
};

TEST(MessageMatcherTest, EveryReceiveGetsTheNextMessageOfItsSourceAndTag) {
  constexpr int kWorld = 3;
  constexpr uint32_t kTags = 2;
  for (uint32_t seed = 0; seed < 300; ++seed) {
    std::mt19937 random(seed);
    Group group(kWorld);
    // Each receiver calls as many receives as it is sent messages, of each source and tag. The receives of
    // tag 1 accept any source.
    struct Call {
      bool send;
      int rank, peer;
      uint32_t tag;
      size_t bytes;
    };
    std::vector<Call> calls;
    for (int i = 0; i < 60; ++i) {
      const int from = static_cast<int>(random() % kWorld), to = static_cast<int>(random() % kWorld);
      const uint32_t tag = random() % kTags;
      // All messages of tag 1 have one size, because any of their receives may get any of them.
      const size_t bytes = tag == 1 ? 30 : std::vector<size_t>{0, 1, 30, 40, 41, 150}[random() % 6];
      calls.push_back({true, from, to, tag, bytes});
      calls.push_back({false, to, tag == 1 ? kAnySource : from, tag, bytes});
    }
    // Sends and receives of one pair keep their order among themselves, so that sizes fit; all else is mixed.
    std::vector<Call> sends, recvs, mixed;
    for (const Call& call : calls) (call.send ? sends : recvs).push_back(call);
    for (size_t s = 0, r = 0; s < sends.size() || r < recvs.size();) {
      const bool send = r == recvs.size() || (s < sends.size() && random() % 2 == 0);
      mixed.push_back(send ? sends[s++] : recvs[r++]);
    }
    std::map<std::pair<std::pair<int, int>, uint32_t>, int> sent, received;  // by (from, to), tag
    std::vector<std::pair<Message*, Call>> began;
    for (const Call& call : mixed) {
      if (call.send) {
        const int number = sent[{{call.rank, call.peer}, call.tag}]++;
        std::string text(call.bytes, static_cast<char>('a' + number % 26));
        began.emplace_back(group[call.rank].Send(call.peer, call.tag, text), call);
      } else {
        began.emplace_back(group[call.rank].Recv(call.peer, call.tag, call.bytes), call);
      }
      while (random() % 3 != 0 && group.DeliverOne(&random)) {
      }
    }
    group.Deliver(&random);
    for (const auto& [message, call] : began) {
      ASSERT_TRUE(message->result.has_value()) << "seed " << seed << ": " << Describe(message->operation);
      TANDEM_ASSERT_OK(*message->result);
      if (call.send) continue;
      const int source = **message->result;
      EXPECT_TRUE(call.peer == kAnySource || source == call.peer) << source;
      const int number = received[{{source, call.rank}, call.tag}]++;
      EXPECT_EQ(message->text, std::string(call.bytes, static_cast<char>('a' + number % 26)))
          << "seed " << seed;
    }
    for (int rank = 0; rank < kWorld; ++rank) EXPECT_FALSE(group[rank].matcher.HasAnnounced());
    ASSERT_FALSE(::testing::Test::HasFailure());
  }
}

TEST(MessageMatcherTest, OnlyAsManyUnmatchedBytesAsTheCreditAreSentUnasked) {
  std::mt19937 random(1);
  Group group(2);
  // 34 bytes each with the overhead: two fit into the credit of 100.
  std::vector<Message*> sends;
  for (int i = 0; i < 4; ++i) sends.push_back(group[0].Send(1, 0, std::string(30, 'x')));
  group.Deliver(&random);
  EXPECT_TRUE(sends[0]->result.has_value());
  EXPECT_TRUE(sends[1]->result.has_value());
  EXPECT_FALSE(sends[2]->result.has_value());
  // A message that no longer fits is announced, and delays none that does.
  EXPECT_TRUE(group[0].Send(1, 9, "y")->result.has_value());
  for (int i = 0; i < 4; ++i) {
    Message* const recv = group[1].Recv(0, 0, 30);
    group.Deliver(&random);
    TANDEM_ASSERT_OK(*recv->result);
  }
  EXPECT_TRUE(sends[3]->result.has_value());
  // The credit has come back.
  EXPECT_TRUE(group[0].Send(1, 0, std::string(30, 'x'))->result.has_value());
}

TEST(MessageMatcherTest, AMessageThatDoesNotFitIsNamedAndTheNextArrives) {
  for (const size_t bytes : {10, 90}) {  // eager and announced
    for (const bool posted_first : {false, true}) {
      std::mt19937 random(1);
      Group group(2);
      Message* recv = posted_first ? group[1].Recv(0, 3, bytes + 1) : nullptr;
      Message* const first = group[0].Send(1, 3, std::string(bytes, 'a'));
      Message* const second = group[0].Send(1, 3, std::string(bytes, 'b'));
      group.Deliver(&random);
      if (!posted_first) recv = group[1].Recv(0, 3, bytes + 1);
      group.Deliver(&random);
      EXPECT_THAT(*recv->result,
                  StatusIs(absl::StatusCode::kInvalidArgument,
                           AllOf(HasSubstr(absl::StrCat("(u8 x ", bytes + 1, " from rank 0, tag 3)")),
                                 HasSubstr(absl::StrCat("rank 0 sent u8 x ", bytes, " instead")))));
      EXPECT_EQ(recv->text, std::string(bytes + 1, '?'));
      recv = group[1].Recv(0, 3, bytes);
      group.Deliver(&random);
      TANDEM_ASSERT_OK(*recv->result);
      EXPECT_EQ(recv->text, std::string(bytes, 'b'));
      EXPECT_TRUE(first->result->ok() && second->result->ok());
    }
  }
}

TEST(MessageMatcherTest, RanksThatAllSendBeforeTheyReceiveEndWithinTheSpareMemory) {
  for (const size_t bytes : {200, 201}) {
    std::mt19937 random(1);
    Group group(3);
    std::vector<Message*> sends;
    for (int rank = 0; rank < 3; ++rank) {
      sends.push_back(group[rank].Send((rank + 1) % 3, 0, std::string(bytes, static_cast<char>('a' + rank))));
    }
    group.Deliver(&random);
    for (Message* send : sends) EXPECT_EQ(send->result.has_value(), bytes == 200);
    for (int rank = 0; rank < 3; ++rank) {
      Message* const recv = group[rank].Recv((rank + 2) % 3, 0, bytes);
      group.Deliver(&random);
      TANDEM_ASSERT_OK(*recv->result);
      EXPECT_EQ(recv->text, std::string(bytes, static_cast<char>('a' + (rank + 2) % 3)));
    }
  }
}

TEST(MessageMatcherTest, ARankThatDoesNotSendKeepsNoAnnouncedMessage) {
  std::mt19937 random(1);
  Group group(2);
  Message* const send = group[0].Send(1, 0, std::string(150, 'a'));
  group.Deliver(&random);
  EXPECT_FALSE(send->result.has_value());
  Message* const recv = group[1].Recv(kAnySource, 0, 150);
  group.Deliver(&random);
  TANDEM_EXPECT_OK(*recv->result);
  EXPECT_EQ(recv->text, send->text);
}

TEST(MessageMatcherTest, ALeavingRankEndsOnlyWhatNeedsIt) {
  std::mt19937 random(1);
  Group group(3);
  Message* const kept = group[1].Send(0, 5, "early");
  Message* const announced = group[0].Send(1, 0, std::string(150, 'a'));
  Message* const waiting = group[0].Recv(1, 1, 4);
  Message* const other = group[0].Recv(2, 1, 4);
  Message* const any = group[0].Recv(kAnySource, 1, 4);
  group.Deliver(&random);
  EXPECT_TRUE(kept->result.has_value());
  EXPECT_EQ(group[0].matcher.WaitsFor(1), &announced->operation);
  EXPECT_EQ(group[0].matcher.WaitsForAnySource(), &any->operation);
  group[0].matcher.PeerLeft(1);
  for (Message* ended : {announced, waiting, group[0].Recv(1, 2, 1)}) {
    ASSERT_TRUE(ended->result.has_value());
    EXPECT_THAT(*ended->result,
                StatusIs(absl::StatusCode::kUnavailable, HasSubstr("rank 1 has left the group")));
  }
  EXPECT_FALSE(other->result.has_value());
  EXPECT_FALSE(any->result.has_value());
  EXPECT_EQ(group[0].matcher.WaitsFor(1), nullptr);
  // A message that had arrived completely can still be received.
  Message* const early = group[0].Recv(1, 5, 5);
  ASSERT_TRUE(early->result.has_value());
  EXPECT_EQ(early->text, "early");
  group[0].matcher.PeerLeft(2);
  EXPECT_THAT(*other->result, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("rank 2 has left")));
  EXPECT_THAT(*any->result, StatusIs(absl::StatusCode::kUnavailable, HasSubstr("ranks 1 and 2 have left")));
}

TEST(MessageMatcherTest, WhatAPeerMayNotSendIsNotAccepted) {
  Group group(2);
  MessageMatcher& matcher = group[0].matcher;
  EXPECT_EQ(matcher.TakeAnnounced(1, 7), nullptr);
  EXPECT_FALSE(matcher.CreditReturned(1, 1));
  EXPECT_FALSE(matcher.BeginGranted(1, 7, 1));
  MessageMatcher::Head head;
  head.bytes = kLimits.largest_eager + 1;
  EXPECT_FALSE(matcher.BeginEager(1, head));
  head.bytes = 40;
  for (const bool fits : {true, true, false}) {  // 44 bytes each with the overhead
    EXPECT_EQ(matcher.BeginEager(1, head), fits);
    if (fits) matcher.Complete(1);
  }
  // A granted message may not become longer than it was announced.
  Message* const recv = group[0].Recv(1, 1, 60);
  head = {.tag = 1, .bytes = 60, .id = 3, .announced = true};
  matcher.Announced(1, head);
  EXPECT_TRUE(matcher.BeginGranted(1, 3, 50));
  matcher.Complete(1);
  EXPECT_FALSE(matcher.BeginGranted(1, 3, 11));
  EXPECT_FALSE(recv->result.has_value());
}

TEST(MessageMatcherTest, EverythingEndsOnceWhenTheGroupFails) {
  std::mt19937 random(1);
  Group group(2);
  std::vector<Message*> all = {group[0].Send(1, 0, std::string(150, 'a')), group[0].Recv(1, 1, 4),
                               group[0].Recv(kAnySource, 2, 4)};
  group[1].Send(0, 3, std::string(150, 'b'));
  all.push_back(group[0].Recv(1, 3, 150));  // granted, and never sent
  while (!group.wires[1][0].empty()) ASSERT_TRUE(group[0].Handle(1, 64));
  group[0].matcher.EndAll(absl::AbortedError("enough"));
  for (Message* message : all) {
    ASSERT_TRUE(message->result.has_value());
    EXPECT_THAT(*message->result, StatusIs(absl::StatusCode::kAborted, HasSubstr("enough")));
  }
  EXPECT_FALSE(group[0].matcher.HasAnnounced());
  EXPECT_EQ(group[0].matcher.WaitsFor(1), nullptr);
}

}  // namespace
}  // namespace tandem::collectives

// SPDX-License-Identifier: Apache-2.0
#include "rpc/shm/link.h"

#include <atomic>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/random.h"
#include "tests/rpc/echo_service.h"
#include "tests/rpc/shm/link_pair.h"
#include "tests/testing/status_matchers.h"

namespace tandem::rpc::shm {
namespace {

using rpc::testing::Pattern;
using ::tandem::testing::StatusIs;
using testing::Await;
using ::testing::HasSubstr;
using testing::LinkPair;
using testing::Request;
using testing::Response;

Bytes Lent(Link& link, const std::string& text) {
  std::shared_ptr<char> memory = link.BorrowMemory(text.size());
  TANDEM_CHECK(memory != nullptr);
  std::memcpy(memory.get(), text.data(), text.size());
  const char* data = memory.get();
  return Bytes(Slice(std::move(memory), data, text.size()));
}

TEST(LinkTest, BodiesOfEveryShapeArriveUnchanged) {
  LinkPair pair;
  uint64_t call = 1;
  for (const size_t size : {size_t{0}, size_t{1}, size_t{1024}, size_t{1025}, size_t{4096}, size_t{100000},
                            size_t{1} << 20, size_t{5} << 20}) {
    const std::string text = Pattern(size);
    for (const size_t slices : {size_t{1}, size_t{2}, size_t{7}, size_t{200}}) {
      const Bytes whole(text);
      Bytes body;
      for (size_t s = 0; s < slices; ++s) {
        const size_t begin = size * s / slices, end = size * (s + 1) / slices;
        body.Append(whole.Sub(begin, end - begin));
      }
      pair.client->Send(Request(call, body));
      Message got;
      ASSERT_TRUE(Await(*pair.client, *pair.server, &got)) << size << " in " << slices;
      EXPECT_EQ(got.call, call++);
      EXPECT_EQ(got.text, "/tandem.v1.Echo/Echo");
      ASSERT_TRUE(got.body.Flatten() == text) << size << " in " << slices;
    }
  }
  EXPECT_EQ(pair.client->free_bytes(), pair.geometry.payload_bytes);
}

TEST(LinkTest, LentMemoryIsReadInPlaceAndComesBackInAnyOrder) {
  LinkPair pair;
  std::vector<Bytes> kept;
  const size_t all = pair.server->free_bytes();
  for (int i = 0; i < 8; ++i) {
    Bytes body(std::string("header"));
    body.Append(Lent(*pair.server, Pattern(100000 + i)));
    pair.server->Send(Response(i, std::move(body)));
    Message got;
    ASSERT_TRUE(pair.client->Receive(&got));
    ASSERT_EQ(got.body.slices().size(), 2u);
    EXPECT_EQ(reinterpret_cast<uintptr_t>(got.body.slices()[1].data()) % 64, 0u);
    kept.push_back(std::move(got.body));
  }
  EXPECT_EQ(pair.client->held_bytes(), 8 * 100000u + 28);
  EXPECT_LT(pair.server->free_bytes(), all - 800000);
  for (const int i : {3, 0, 7, 1, 6, 2, 5, 4}) {
    EXPECT_TRUE(kept[i].Sub(6, 100000 + i).Flatten() == Pattern(100000 + i));
    kept[i] = Bytes();
  }
  EXPECT_EQ(pair.client->held_bytes(), 0u);
  EXPECT_EQ(pair.server->free_bytes(), all);
}

TEST(LinkTest, LentMemoryDroppedUnsentOrSentTwiceIsFreeAfterwards) {
  LinkPair pair;
  const size_t all = pair.client->free_bytes();
  pair.client->BorrowMemory(1 << 20).reset();
  EXPECT_EQ(pair.client->free_bytes(), all);
  {
    const Bytes body = Lent(*pair.client, Pattern(50000));
    pair.client->Send(Request(1, body));
    pair.client->Send(Request(2, body));  // a retry
  }
  for (int i = 0; i < 2; ++i) {
    EXPECT_LT(pair.client->free_bytes(), all);
    Message got;
    ASSERT_TRUE(pair.server->Receive(&got));
    EXPECT_TRUE(got.body.Flatten() == Pattern(50000));
  }
  EXPECT_EQ(pair.client->free_bytes(), all);
  EXPECT_EQ(pair.client->BorrowMemory(100), nullptr) << "small bodies travel inline";
  EXPECT_EQ(pair.client->BorrowMemory(pair.geometry.payload_bytes), nullptr);
}

TEST(LinkTest, AFullRingKeepsMessagesInTheQueueUntilTheyAreRead) {
  LinkPair pair;
  constexpr uint64_t kCount = 5000;
  for (uint64_t call = 0; call < kCount; ++call)
    pair.client->Send(Request(call, Bytes(std::string(100, 'x'))));
  EXPECT_TRUE(pair.client->has_queue());
  EXPECT_GT(pair.client->queued_bytes(), 0u);
  for (uint64_t call = 0; call < kCount; ++call) {
    Message got;
    ASSERT_TRUE(Await(*pair.client, *pair.server, &got));
    ASSERT_EQ(got.call, call);
  }
  EXPECT_FALSE(pair.client->has_queue());
  EXPECT_EQ(pair.client->queued_bytes(), 0u);
}

TEST(LinkTest, AReceiverThatKeepsEverythingDoesNotStopTheTraffic) {
  LinkPair pair;
  std::vector<Bytes> kept;
  for (int i = 0; i < 40; ++i) {  // 8 MB through 2 MiB
    Bytes body(std::string("header"));
    body.Append(Bytes(Pattern(200000)));
    pair.client->Send(Request(i, std::move(body)));
    Message got;
    ASSERT_TRUE(Await(*pair.client, *pair.server, &got)) << i;
    kept.push_back(got.body.Sub(6, 200000));
    EXPECT_LE(pair.server->held_bytes(), pair.geometry.payload_bytes / 2);
  }
  EXPECT_GT(pair.server->held_bytes(), 0u);
  for (const Bytes& body : kept) ASSERT_TRUE(body.Flatten() == Pattern(200000));
}

TEST(LinkTest, WhatNeedsNoMemoryPassesWhatWaitsForSome) {
  LinkPair pair;
  std::vector<std::shared_ptr<char>> borrowed;
  while (auto memory = pair.client->BorrowMemory(200000)) borrowed.push_back(std::move(memory));
  // Uses the reserve, too.
  pair.client->Send(Request(0, Bytes(Pattern(300000))));
  pair.client->Send(Request(1, Bytes(Pattern(400000))));
  pair.client->Send(Request(2, Bytes(std::string("small"))));
  std::memset(borrowed[0].get(), 'l', 200000);
  const char* data = borrowed[0].get();
  pair.client->Send(Request(3, Bytes(Slice(borrowed[0], data, 200000))));
  std::vector<uint64_t> order;
  Message got;
  while (pair.server->Receive(&got)) order.push_back(got.call);
  EXPECT_THAT(order, ::testing::IsSupersetOf({2, 3}));
  borrowed.clear();
  got = Message();
  while (order.size() < 4 && Await(*pair.client, *pair.server, &got)) order.push_back(got.call);
  EXPECT_THAT(order, ::testing::UnorderedElementsAre(0, 1, 2, 3));
}

TEST(LinkTest, TheBeginningOfARequestIsOutOfTheClientsReach) {
  LinkPair pair;
  std::shared_ptr<char> memory = pair.client->BorrowMemory(10000);
  std::memset(memory.get(), 'a', 10000);
  Bytes body(Slice(memory, memory.get(), 5000));
  body.Append(Slice(memory, memory.get() + 5000, 5000));
  pair.client->Send(Request(1, body));
  Message got;
  ASSERT_TRUE(pair.server->Receive(&got));
  std::memset(memory.get(), 'b', 10000);
  EXPECT_EQ(got.body.Flatten(), std::string(5000, 'a') + std::string(5000, 'b'));
}

TEST(LinkTest, AMessageOverTheLimitIsToldAndLeavesNothing) {
  LinkPair pair(2 << 20, 1 << 20);
  for (const size_t size : {(size_t{1} << 20) + 1, size_t{8} << 20}) {
    pair.client->Send(Request(1, Bytes(std::string(size, 'x'))));
    Message got;
    ASSERT_TRUE(Await(*pair.client, *pair.server, &got));
    EXPECT_TRUE(got.too_large);
    EXPECT_TRUE(got.body.empty());
  }
  EXPECT_EQ(pair.client->free_bytes(), pair.geometry.payload_bytes);
}

TEST(LinkTest, AHalfSentMessageMayBeDropped) {
  LinkPair pair;
  pair.client->Send(Request(1, Bytes(std::string(16 << 20, 'x'))));  // its parts fill the memory
  ASSERT_TRUE(pair.client->has_queue());
  pair.client->Send(Request(2, Bytes(Pattern(3 << 20))));
  pair.client->Drop(1);
  Message got;
  ASSERT_TRUE(Await(*pair.client, *pair.server, &got));
  EXPECT_EQ(got.call, 2u);
  EXPECT_TRUE(got.body.Flatten() == Pattern(3 << 20));
  got = Message();
  EXPECT_EQ(pair.client->free_bytes(), pair.geometry.payload_bytes);
}

TEST(LinkTest, ManyThreadsSendAndDropWhileOneReceives) {
  LinkPair pair(4 << 20);
  constexpr int kThreads = 3, kEach = 300;
  std::vector<std::thread> threads;
  for (int t = 0; t < kThreads; ++t) {
    threads.emplace_back([&, t] {
      CounterRandom random(9, t);
      for (int i = 0; i < kEach; ++i) {
        const uint64_t call = t * kEach + i;
        std::string text(random.Below(random.Below(4) == 0 ? 600000 : 3000), static_cast<char>(call));
        std::shared_ptr<char> memory =
            random.Below(2) == 0 ? pair.client->BorrowMemory(text.size()) : nullptr;
        if (memory == nullptr) {
          pair.client->Send(Request(call, Bytes(std::move(text))));
        } else {
          std::memset(memory.get(), static_cast<char>(call), text.size());
          const char* data = memory.get();
          pair.client->Send(Request(call, Bytes(Slice(std::move(memory), data, text.size()))));
        }
      }
    });
  }
  std::vector<bool> seen(kThreads * kEach, false);
  std::vector<Bytes> kept(16);
  for (int i = 0; i < kThreads * kEach; ++i) {
    Message got;
    ASSERT_TRUE(Await(*pair.client, *pair.server, &got)) << pair.server->failure();
    ASSERT_LT(got.call, seen.size());
    ASSERT_FALSE(seen[got.call]);
    seen[got.call] = true;
    ASSERT_EQ(got.body.Flatten().find_first_not_of(static_cast<char>(got.call)), std::string::npos);
    kept[i % kept.size()] = std::move(got.body);
  }
  for (std::thread& thread : threads) thread.join();
  kept.clear();
  EXPECT_EQ(pair.client->free_bytes(), pair.geometry.payload_bytes);
}

TEST(LinkTest, ABrokenLinkSaysWhyAndHoldsNothingBack) {
  LinkPair pair;
  const std::weak_ptr<Link> weak = pair.server;
  // Queued messages that refer to memory of the same link must not keep it alive.
  for (int i = 0; i < 5; ++i) pair.client->Send(Request(i, Bytes(Pattern(100000))));
  Message got;
  while (pair.server->Receive(&got)) {
    for (int i = 0; i < 200; ++i) pair.server->Send(Response(i, got.body));
  }
  EXPECT_TRUE(pair.server->has_queue());
  got = Message();
  pair.server->Break(absl::DataLossError("first"));
  pair.server->Close(absl::UnavailableError("second"));
  EXPECT_THAT(
      pair.server->failure(),
      StatusIs(absl::StatusCode::kDataLoss, ::testing::AllOf(HasSubstr("first"), HasSubstr("the client"))));
  EXPECT_FALSE(pair.client->DrainSocket());
  EXPECT_EQ(pair.server->BorrowMemory(10000), nullptr);
  pair.server->Send(Response(1, Bytes(std::string("x"))));
  EXPECT_FALSE(pair.server->has_queue());
  pair.server = std::make_shared<LinkPair>()->server;
  EXPECT_TRUE(weak.expired());
}

}  // namespace
}  // namespace tandem::rpc::shm

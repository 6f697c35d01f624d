// SPDX-License-Identifier: Apache-2.0
#include "rpc/remote/stream.h"

#include <memory>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "absl/strings/str_cat.h"
#include "tests/rpc/remote/cluster.h"
#include "tests/testing/status_matchers.h"
#include "tests/testing/watched.h"

namespace tandem::rpc::remote {
namespace {

using ::tandem::testing::StatusIs;
using ::tandem::testing::Watched;
using testing::Cluster;
using ::testing::HasSubstr;
using testing::kTestTimeout;

constexpr StreamFunction<void, int64_t, int64_t> kNumbers{"numbers"};
constexpr StreamFunction<int64_t, int64_t> kSum{"sum"};
constexpr StreamFunction<Tensor, Tensor, int64_t> kScale{"scale"};
constexpr StreamFunction<void, int64_t> kForever{"forever"};
constexpr StreamFunction<int64_t, void> kSink{"sink"};
constexpr StreamFunction<void, std::string, int64_t> kNumbersAsSomebodyElseHasThem{"numbers"};

class StreamTest : public ::testing::TestWithParam<std::string> {
 protected:
  StreamTest() : cluster(GetParam()) {
    Functions functions;
    AddStream(functions, kNumbers,
              [this](ServerStream<void, int64_t>& stream, int64_t count) -> absl::Status {
                for (int64_t i = 0; i < count; ++i) {
                  TANDEM_RETURN_IF_ERROR(stream.Write(i));
                  ++written;
                }
                if (count == 13) return absl::OutOfRangeError("unlucky");
                return absl::OkStatus();
              });
    AddStream(functions, kSum, [](ServerStream<int64_t, int64_t>& stream) -> absl::Status {
      int64_t sum = 0;
      while (true) {
        TANDEM_ASSIGN_OR_RETURN(const std::optional<int64_t> value, stream.Read());
        if (!value.has_value()) break;
        sum += *value;
      }
      return stream.Write(sum);
    });
    AddStream(functions, kScale, [](ServerStream<Tensor, Tensor>& stream, int64_t factor) -> absl::Status {
      while (true) {
        TANDEM_ASSIGN_OR_RETURN(std::optional<Tensor> tensor, stream.Read());
        if (!tensor.has_value()) return absl::OkStatus();
        TANDEM_ASSIGN_OR_RETURN(const auto values, tensor->mutable_values<float>());
        for (float& value : values) value *= static_cast<float>(factor);
        TANDEM_RETURN_IF_ERROR(stream.Write(*tensor));
      }
    });
    AddStream(functions, kForever, [this](ServerStream<void, int64_t>& stream) -> absl::Status {
      absl::Status status;
      while (status.ok()) {
        status = stream.Write(int64_t{1});
        if (status.ok()) ++written;
      }
      saw_cancellation = stream.IsCancelled();
      return status;
    });
    AddStream(functions, kSink, [this](ServerStream<int64_t, void>& stream) -> absl::Status {
      if (!open.AwaitValue(true)) return absl::InternalError("never opened");
      while (true) {
        TANDEM_ASSIGN_OR_RETURN(const std::optional<int64_t> value, stream.Read());
        if (!value.has_value()) return absl::OkStatus();
      }
    });
    cluster.Add({});
    cluster.Add(std::move(functions));
  }

  Watched<int> written;
  Watched<bool> saw_cancellation, open;
  Cluster cluster;
};

INSTANTIATE_TEST_SUITE_P(Transports, StreamTest, ::testing::Values("grpc", "shm"),
                         [](const auto& info) { return info.param; });

TEST_P(StreamTest, TheServerGivesItemsInOrder) {
  TANDEM_ASSERT_OK_AND_ASSIGN(auto stream, OpenStream(cluster[0], "worker/1", kNumbers, 1000));
  for (int64_t i = 0; i < 1000; ++i) {
    TANDEM_ASSERT_OK_AND_ASSIGN(const std::optional<int64_t> value, stream->Read());
    ASSERT_EQ(value, i);
  }
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::optional<int64_t> end, stream->Read());
  EXPECT_FALSE(end.has_value());
}

TEST_P(StreamTest, TheClientGivesItemsAndGetsAResult) {
  TANDEM_ASSERT_OK_AND_ASSIGN(auto stream, OpenStream(cluster[0], "worker/1", kSum));
  for (int64_t i = 1; i <= 1000; ++i) TANDEM_ASSERT_OK(stream->Write(i));
  TANDEM_ASSERT_OK(stream->EndWrites());
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::optional<int64_t> sum, stream->Read());
  EXPECT_EQ(sum, 500500);
  TANDEM_ASSERT_OK_AND_ASSIGN(const std::optional<int64_t> end, stream->Read());
  EXPECT_FALSE(end.has_value());
}

TEST_P(StreamTest, BothGiveItemsAtTheSameTime) {
  TANDEM_ASSERT_OK_AND_ASSIGN(auto stream, OpenStream(cluster[0], "worker/1", kScale, 3));
  constexpr int kItems = 300;
  std::thread writer([&stream] {
    for (int i = 0; i < kItems; ++i) {
      TANDEM_EXPECT_OK(stream->Write(Tensor::Of(std::vector<float>(1000, static_cast<float>(i)))));
    }
    TANDEM_EXPECT_OK(stream->EndWrites());
  });
  for (int i = 0; i < kItems; ++i) {
    const absl::StatusOr<std::optional<Tensor>> tensor = stream->Read();
    TANDEM_EXPECT_OK(tensor);
    if (!tensor.ok() || !tensor->has_value()) break;
    EXPECT_EQ((*tensor)->values<float>()->at(999), 3.0f * static_cast<float>(i));
  }
  writer.join();
}

TEST_P(StreamTest, AnErrorComesBehindTheItems) {
  TANDEM_ASSERT_OK_AND_ASSIGN(auto stream, OpenStream(cluster[0], "worker/1", kNumbers, 13));
  for (int64_t i = 0; i < 13; ++i) TANDEM_ASSERT_OK(stream->Read());
  EXPECT_THAT(stream->Read(),
              StatusIs(absl::StatusCode::kOutOfRange, HasSubstr("worker/1: numbers: unlucky")));
}

TEST_P(StreamTest, AServerDoesNotRunAheadOfASlowReader) {
  TANDEM_ASSERT_OK_AND_ASSIGN(auto stream, OpenStream(cluster[0], "worker/1", kForever));
  // Both ends hold as many items as they may, and no more, even if nobody reads for long.
  ASSERT_TRUE(written.Await([](int n) { return n >= 64; }));
  EXPECT_FALSE(written.Await([](int n) { return n > 64 + 64 + 32; }, absl::Milliseconds(50)));
  for (int i = 0; i < 500; ++i) TANDEM_ASSERT_OK(stream->Read());
  EXPECT_GE(written, 500);
}

TEST_P(StreamTest, AClientDoesNotRunAheadOfASlowServer) {
  TANDEM_ASSERT_OK_AND_ASSIGN(auto stream, OpenStream(cluster[0], "worker/1", kSink));
  Watched<int> sent;
  std::thread writer([&] {
    for (int i = 0; i < 1000; ++i) {
      TANDEM_EXPECT_OK(stream->Write(int64_t{1}));
      ++sent;
    }
    TANDEM_EXPECT_OK(stream->EndWrites());
  });
  ASSERT_TRUE(sent.Await([](int n) { return n >= 64; }));
  EXPECT_FALSE(sent.Await([](int n) { return n > 4 * 64; }, absl::Milliseconds(50)));
  open = true;
  writer.join();
  TANDEM_EXPECT_OK(stream->Read());
}

TEST_P(StreamTest, AClientThatGoesEndsTheStream) {
  {
    TANDEM_ASSERT_OK_AND_ASSIGN(auto stream, OpenStream(cluster[0], "worker/1", kForever));
    TANDEM_ASSERT_OK(stream->Read());
  }
  EXPECT_TRUE(saw_cancellation.AwaitValue(true));
}

TEST_P(StreamTest, AServerThatGoesEndsTheStream) {
  TANDEM_ASSERT_OK_AND_ASSIGN(auto stream, OpenStream(cluster[0], "worker/1", kForever));
  TANDEM_ASSERT_OK(stream->Read());
  cluster.Kill(1);
  absl::Status end;
  for (int i = 0; i < 1000 && end.ok(); ++i) end = stream->Read().status();
  EXPECT_FALSE(end.ok()) << "a named error, not a hang";
  EXPECT_THAT(end.message(), HasSubstr("worker/1"));
}

TEST_P(StreamTest, ItemsOfAnotherTypeAreRefusedByBothSignatures) {
  EXPECT_THAT(OpenStream(cluster[0], "worker/1", kNumbersAsSomebodyElseHasThem, 1).status(),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       ::testing::AllOf(HasSubstr("numbers(i64) -> stream<void, string>"),
                                        HasSubstr("numbers(i64) -> stream<void, i64>"))));
}

TEST_P(StreamTest, AStreamToOneselfIsAStream) {
  TANDEM_ASSERT_OK_AND_ASSIGN(auto stream, OpenStream(cluster[1], "worker/1", kNumbers, 100));
  for (int64_t i = 0; i < 100; ++i) TANDEM_ASSERT_OK(stream->Read());
}

// The function has returned while the client still writes. The client then reads what the function wrote, and
// its OK.
TEST(StreamStateTest, ItemsThatComeAfterTheEndAreDroppedAndCounted) {
  StreamState stream;
  TANDEM_ASSERT_OK(stream.Write(StreamItem{.small = "from the server"}));
  stream.Finish(absl::OkStatus());
  for (const uint64_t first : {0, 2, 4}) {
    const Future<void> sent = stream.OnWrite(first, std::vector<StreamItem>(2), /*last=*/false);
    ASSERT_TRUE(sent.ready());
    TANDEM_EXPECT_OK(sent.Wait());
  }
  const Future<StreamBatch> read = stream.OnRead(0);
  ASSERT_TRUE(read.ready());
  TANDEM_ASSERT_OK_AND_ASSIGN(const StreamBatch batch, read.Wait());
  EXPECT_EQ(batch.items.size(), 1u);
  EXPECT_TRUE(batch.ended);
  EXPECT_EQ(batch.code, 0);
}

// So a client can say that it is alive while neither side takes items.
TEST(StreamStateTest, AWriteWithoutItemsCountsAsContactAndIsAnsweredAtOnce) {
  StreamState stream;
  const Future<void> full = stream.OnWrite(0, std::vector<StreamItem>(kStreamWindow), /*last=*/false);
  EXPECT_FALSE(full.ready());
  const absl::Time before = MonotonicNow();
  for (const uint64_t first : {uint64_t{0}, uint64_t{kStreamWindow}}) {
    const Future<void> alive = stream.OnWrite(first, {}, /*last=*/false);
    ASSERT_TRUE(alive.ready());
    TANDEM_EXPECT_OK(alive.Wait());
  }
  EXPECT_GE(stream.last_contact(), before);
}

TEST(StreamStateTest, WhatTheServerHoldsIsBoundedInBytesToo) {
  StreamState stream;
  std::vector<Future<void>> sent;
  for (uint64_t number = 0; number < 8; ++number) {
    std::vector<StreamItem> items(1);
    items[0].bulk = Tensor::Allocate(DType::kU8, {1 << 20});
    sent.push_back(stream.OnWrite(number, std::move(items), /*last=*/false));
  }
  for (int i = 0; i < 7; ++i) EXPECT_TRUE(sent[i].ready()) << i;
  EXPECT_FALSE(sent[7].ready()) << "8 MiB wait: the client is to wait, too";
  ASSERT_TRUE(stream.Read().has_value());
  EXPECT_TRUE(sent[7].ready());
}

}  // namespace
}  // namespace tandem::rpc::remote

// SPDX-License-Identifier: Apache-2.0
// Responses whose rows are read while they are sent. They have the same bytes as responses that are written
// at once, and no chunk is larger than its limit.

#include <algorithm>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "gtest/gtest.h"
#include "rpc/wire/response_source.h"
#include "tests/ps/server/driver.h"
#include "tests/testing/status_matchers.h"

namespace tandem::ps::testing {
namespace {

constexpr size_t kLimit = rpc::ResponseSource::kMinChunk;

// A call whose transport asks for the response in chunks.
class ChunkedCall : public TestCall {
 public:
  using TestCall::TestCall;
  void FinishInChunks(std::unique_ptr<rpc::ResponseSource> response) override {
    Bytes whole;
    const size_t size = response->size();
    while (whole.size() < size) {
      Bytes chunk = response->Next(kLimit);
      largest_ = std::max(largest_, chunk.size());
      ++chunks_;
      if (chunk.empty() || chunk.size() > kLimit) break;
      whole.Append(std::move(chunk));
    }
    EXPECT_EQ(whole.size(), size);
    Finish(std::move(whole));
  }
  size_t chunks() const { return chunks_; }
  size_t largest() const { return largest_; }

 private:
  size_t chunks_ = 0;
  size_t largest_ = 0;
};

class PullResponses : public ::testing::Test {
 protected:
  void SetUp() override {
    for (const uint32_t dim : {1, 3, 100}) {
      TANDEM_ASSERT_OK(driver_.CreateTable(TestTable(absl::StrCat("d", dim), dim, 1, Async())));
    }
    service_ = driver_.server().service();
  }
  std::shared_ptr<ChunkedCall> PullInChunks(const std::vector<PullOf>& parts) {
    auto call = std::make_shared<ChunkedCall>(PullRequestBytes(0, 0, parts), absl::InfiniteFuture());
    for (const rpc::Method& method : service_.methods) {
      if (method.name == "Pull") method.handler(call);
    }
    return call;
  }
  // Expects the same rows from a response in chunks, of which there are at least `min_chunks`, and from one
  // that is written at once.
  void ExpectSame(const std::vector<PullOf>& parts, size_t min_chunks) {
    const std::shared_ptr<ChunkedCall> call = PullInChunks(parts);
    TANDEM_ASSERT_OK_AND_ASSIGN(const Rows in_chunks, ParseRows(call->Wait()));
    EXPECT_LE(call->largest(), kLimit);
    EXPECT_GE(call->chunks(), min_chunks);
    TANDEM_ASSERT_OK_AND_ASSIGN(const Rows at_once, driver_.Pull(0, 0, parts));
    EXPECT_EQ(in_chunks.slices, at_once.slices);
  }
  static std::vector<uint64_t> Ids(size_t count) {
    std::vector<uint64_t> ids(count);
    for (size_t i = 0; i < count; ++i) ids[i] = i * 7 + 1;
    return ids;
  }

  Driver driver_;
  rpc::Service service_;
};

TEST_F(PullResponses, RowsOfSeveralTablesComeInPiecesOfTheLimit) {
  ExpectSame({{"d100", Ids(500)}, {"d1", Ids(30000)}, {"d3", Ids(1)}, {"d3", {}}, {"d100", Ids(300)}}, 6);
}

TEST_F(PullResponses, AShortAnswerIsMadeAtOnce) {
  ExpectSame({{"d1", {}}, {"d100", {}}}, 0);
  ExpectSame({{"d100", Ids(100)}}, 0);
  EXPECT_EQ(PullInChunks({{"d100", Ids(100)}})->chunks(), 0);
  EXPECT_GT(PullInChunks({{"d100", Ids(200)}})->chunks(), 0);
}

TEST_F(PullResponses, ManySlicesOfOneRowEachMakeNoPieceTooLarge) {
  ExpectSame(std::vector<PullOf>(512, PullOf{"d100", {5}}), 4);
  ExpectSame(std::vector<PullOf>(kMaxSlices, PullOf{"d1", {5}}), 0);
  // A response whose header exceeds a chunk would need more slices than a request may have.
  EXPECT_EQ(PullInChunks(std::vector<PullOf>(40000, PullOf{"d1", {5}}))->Wait().status().code(),
            absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace tandem::ps::testing

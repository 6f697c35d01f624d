// SPDX-License-Identifier: Apache-2.0
// Pulls and pushes in every format, over one server and several.

#include <atomic>
#include <map>
#include <memory>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "absl/strings/match.h"
#include "base/random.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "ps/client/client.h"
#include "ps/table.h"
#include "ps/wire/value_codec.h"
#include "tests/testing/ps_cluster.h"
#include "tests/testing/status_matchers.h"

namespace tandem::ps {
namespace {

using ::tandem::testing::PsCluster;
using ::tandem::testing::StatusIs;
using ::testing::HasSubstr;

v1::TableConfig RandomTable(const std::string& name, uint32_t dim) {
  v1::TableConfig config = EmbeddingTable(name, dim, Sgd(1.0f), Uniform(-1.0f, 1.0f));
  *config.mutable_update_mode() = Async();
  return config;
}

// Returns what numbers become when they are sent, one row at a time.
std::vector<float> Through(v1::ValueFormat format, const std::vector<float>& rows, size_t dim) {
  std::string wire(rows.size() / dim * RowBytes(format, dim), '\0');
  std::vector<float> out(rows.size());
  EncodeRows(format, rows.data(), nullptr, rows.size() / dim, dim, wire.data());
  DecodeRows(format, wire.data(), nullptr, rows.size() / dim, dim, out.data());
  return out;
}

class WireTest : public ::testing::TestWithParam<std::tuple<int, v1::ValueFormat, PackIds>> {
 protected:
  int servers() const { return std::get<0>(GetParam()); }
  v1::ValueFormat format() const { return std::get<1>(GetParam()); }
  WireOptions options() const {
    return {.pull_values = format(),
            .push_values = format(),
            .pack_ids = std::get<2>(GetParam()),
            .error_feedback = false};
  }
};
INSTANTIATE_TEST_SUITE_P(Formats, WireTest,
                         ::testing::Combine(::testing::Values(1, 3),
                                            ::testing::Values(v1::VALUES_F32, v1::VALUES_F16, v1::VALUES_BF16,
                                                              v1::VALUES_INT8),
                                            ::testing::Values(PackIds::kNever, PackIds::kAlways)),
                         [](const auto& info) {
                           return std::string(Name(std::get<1>(info.param))) +
                                  std::to_string(std::get<0>(info.param)) +
                                  (std::get<2>(info.param) == PackIds::kAlways ? "Packed" : "Raw");
                         });

TEST_P(WireTest, RowsAndGradientsArriveAsTheFormatRoundsThem) {
  PsCluster cluster(servers());
  TANDEM_ASSERT_OK_AND_ASSIGN(auto plain, cluster.Connect());
  TANDEM_ASSERT_OK_AND_ASSIGN(auto client, cluster.Connect());
  // Odd rows make the following data unaligned
  const std::map<std::string, uint32_t> dims = {{"a", 5}, {"b", 16}};
  for (const auto& [name, dim] : dims) {
    TANDEM_ASSERT_OK(plain->CreateTable(RandomTable(name, dim)));
    TANDEM_ASSERT_OK(client->CreateTable(RandomTable(name, dim)));
    TANDEM_ASSERT_OK(client->SetWire(name, options()));
  }
  CounterRandom random(1, 0);
  for (uint64_t step = 0; step < 5; ++step) {
    std::vector<std::vector<uint64_t>> ids;
    std::vector<std::vector<float>> before, pulled, gradients, after;
    std::vector<PullPart> exact, lossy, then;
    std::vector<PushPart> push;
    for (const auto& [name, dim] : dims) {
      std::vector<uint64_t>& own = ids.emplace_back();
      const size_t wanted = 300 + random.Below(200);
      for (uint64_t id = 0; own.size() < wanted; id += 1 + random.Below(5)) own.push_back(id);
      for (auto* rows : {&before, &pulled, &gradients, &after}) rows->emplace_back(own.size() * dim);
      for (float& g : gradients.back()) g = static_cast<float>(random.Below(2001)) / 1000 - 1;
    }
    size_t t = 0;
    for (const auto& [name, dim] : dims) {
      exact.push_back({.table = name, .ids = ids[t], .rows = before[t].data()});
      lossy.push_back({.table = name, .ids = ids[t], .rows = pulled[t].data()});
      then.push_back({.table = name, .ids = ids[t], .rows = after[t].data()});
      push.push_back({.table = name, .ids = ids[t], .gradients = gradients[t].data()});
      ++t;
    }
    TANDEM_ASSERT_OK(plain->Pull(step, false, exact));
    TANDEM_ASSERT_OK(client->Pull(step, false, lossy));
    TANDEM_ASSERT_OK(client->Push(step, push));
    TANDEM_ASSERT_OK(plain->Pull(step, false, then));
    t = 0;
    for (const auto& [name, dim] : dims) {
      EXPECT_EQ(pulled[t], Through(format(), before[t], dim));
      const std::vector<float> sent = Through(format(), gradients[t], dim);
      for (size_t i = 0; i < sent.size(); ++i) ASSERT_EQ(after[t][i], before[t][i] - sent[i]);
      ++t;
    }
  }
}

TEST_P(WireTest, PooledRowsAndGradientsDoToo) {
  PsCluster cluster(servers());
  TANDEM_ASSERT_OK_AND_ASSIGN(auto plain, cluster.Connect());
  TANDEM_ASSERT_OK_AND_ASSIGN(auto client, cluster.Connect());
  TANDEM_ASSERT_OK(plain->CreateTable(RandomTable("t", 3)));
  TANDEM_ASSERT_OK(client->CreateTable(RandomTable("t", 3)));
  TANDEM_ASSERT_OK(client->SetWire("t", options()));
  const std::vector<uint64_t> ids = {1, 2, 3, 4, 5, 6, 7};
  const std::vector<uint32_t> offsets = {0, 2, 2, 7};
  std::vector<float> exact(9), lossy(9), before(21), after(21);
  TANDEM_ASSERT_OK(plain->Pull(
      0, false, {{.table = "t", .ids = ids, .rows = exact.data(), .pooling = v1::MEAN, .offsets = offsets}}));
  TANDEM_ASSERT_OK(client->Pull(
      0, false, {{.table = "t", .ids = ids, .rows = lossy.data(), .pooling = v1::MEAN, .offsets = offsets}}));
  for (size_t i = 0; i < exact.size(); ++i) EXPECT_NEAR(lossy[i], exact[i], 0.02);
  TANDEM_ASSERT_OK(plain->Pull(0, false, {{.table = "t", .ids = ids, .rows = before.data()}}));
  const std::vector<float> gradients = {1, 0.5f, 0.25f, 9, 9, 9, 4, 2, 1};
  TANDEM_ASSERT_OK(client->Push(
      0,
      {{.table = "t", .ids = ids, .gradients = gradients.data(), .pooling = v1::SUM, .offsets = offsets}}));
  TANDEM_ASSERT_OK(plain->Pull(0, false, {{.table = "t", .ids = ids, .rows = after.data()}}));
  for (size_t i = 0; i < 21; ++i) {
    const size_t bag = i / 3 < 2 ? 0 : 2;
    EXPECT_NEAR(after[i], before[i] - gradients[bag * 3 + i % 3], 0.02);
  }
}

TEST_P(WireTest, IdsThatRepeatAreAskedForOnceAndCopied) {
  PsCluster cluster(servers());
  TANDEM_ASSERT_OK_AND_ASSIGN(auto client, cluster.Connect());
  TANDEM_ASSERT_OK(client->CreateTable(RandomTable("t", 3)));
  TANDEM_ASSERT_OK(client->SetWire("t", options()));
  CounterRandom random(2, 0);
  std::vector<uint64_t> ids(200);
  for (uint64_t& id : ids) id = random.Below(30);
  std::vector<float> each(600), once(600);
  TANDEM_ASSERT_OK(client->Pull(0, false, {{.table = "t", .ids = ids, .rows = each.data()}}));
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto before, client->ListTables());
  TANDEM_ASSERT_OK(
      client->Pull(0, false, {{.table = "t", .ids = ids, .rows = once.data(), .repeats = true}}));
  TANDEM_ASSERT_OK_AND_ASSIGN(const auto after, client->ListTables());
  EXPECT_EQ(once, each);
  EXPECT_LE(after[0].statistics().pulled_rows() - before[0].statistics().pulled_rows(), 30u);
}

TEST(WireOptionsTest, SetWireNamesWhatIsWrong) {
  PsCluster cluster(1);
  TANDEM_ASSERT_OK_AND_ASSIGN(auto client, cluster.Connect());
  EXPECT_THAT(client->SetWire("t", {}), StatusIs(absl::StatusCode::kNotFound, HasSubstr("'t'")));
  TANDEM_ASSERT_OK(client->CreateTable(RandomTable("t", 3)));
  EXPECT_THAT(client->SetWire("t", {.pull_values = static_cast<v1::ValueFormat>(9)}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("value format 9")));
  EXPECT_THAT(client->SetWire("t", {.push_values = v1::VALUES_INT8, .error_feedback_bytes = 0}),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("error_feedback_bytes")));
}

TEST(WireOptionsTest, FeedbackIsForInt8UnlessSaidOtherwise) {
  PsCluster cluster(1);
  TANDEM_ASSERT_OK_AND_ASSIGN(auto client, cluster.Connect());
  TANDEM_ASSERT_OK(client->CreateTable(RandomTable("t", 2)));
  const std::vector<uint64_t> ids = {1, 2};
  const std::vector<float> gradients = {1, 0.3f, 1, 0.7f};
  uint64_t step = 0;
  const auto held = [&](const WireOptions& options) {
    TANDEM_CHECK(client->SetWire("t", options).ok());
    TANDEM_CHECK(client->Push(step++, {{.table = "t", .ids = ids, .gradients = gradients.data()}}).ok());
    return client->FeedbackStatistics("t")->rows;
  };
  EXPECT_EQ(held({}), 0u);
  EXPECT_EQ(held({.push_values = v1::VALUES_INT8}), 2u);
  EXPECT_EQ(held({.push_values = v1::VALUES_INT8, .error_feedback = false}), 0u);
  EXPECT_EQ(held({.push_values = v1::VALUES_BF16}), 0u);
  EXPECT_EQ(held({.push_values = v1::VALUES_BF16, .error_feedback = true}), 2u);
  EXPECT_EQ(held({.push_values = v1::VALUES_F32, .error_feedback = true}), 0u);
}

// Every other attempt at a push fails, before or after the server has seen it. If the push were encoded
// again, the residual that the first attempt left would be added to it.
TEST(WireRetryTest, APushThatIsSentAgainIsTheSameBytes) {
  const auto train = [](rpc::FaultInjector injector) {
    PsCluster cluster(1);
    auto client = cluster.Connect(0, std::move(injector));
    TANDEM_CHECK(client.ok() && (*client)->CreateTable(RandomTable("t", 4)).ok());
    TANDEM_CHECK((*client)->SetWire("t", {.push_values = v1::VALUES_INT8}).ok());
    const std::vector<uint64_t> ids = {1, 2};
    CounterRandom random(1, 0);
    std::vector<float> gradients(8), rows(8);
    for (uint64_t step = 0; step < 20; ++step) {
      for (float& g : gradients) g = static_cast<float>(random.Below(2001)) / 1000 - 1;
      TANDEM_CHECK((*client)->Push(step, {{.table = "t", .ids = ids, .gradients = gradients.data()}}).ok());
    }
    TANDEM_CHECK((*client)->Pull(20, true, {{.table = "t", .ids = ids, .rows = rows.data()}}).ok());
    return rows;
  };
  auto pushes = std::make_shared<std::atomic<int>>(0);
  const std::vector<float> faulty = train([pushes](absl::string_view method, int64_t) {
    rpc::Fault fault;
    if (!absl::EndsWith(method, "/Push")) return fault;
    const int attempt = (*pushes)++;
    if (attempt % 2 == 0) {
      fault.kind = attempt % 4 == 0 ? rpc::Fault::Kind::kFailBefore : rpc::Fault::Kind::kFailAfter;
    }
    return fault;
  });
  EXPECT_EQ(*pushes, 40);
  EXPECT_EQ(faulty, train(nullptr));
}

}  // namespace
}  // namespace tandem::ps

// SPDX-License-Identifier: Apache-2.0
#include "ps/table.h"

#include <cmath>
#include <functional>
#include <string>

#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/ps/not_finite.h"
#include "tests/testing/status_matchers.h"

namespace tandem::ps {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

using testing::kInf;
using testing::kNan;

v1::TableConfig Valid() { return EmbeddingTable("user", 16, Adagrad(0.05f), Uniform(-0.01f, 0.01f)); }

TEST(TableTest, EveryFactoryMakesAValidConfig) {
  for (const auto& optimizer : {Sgd(0.1f), Momentum(0.1f), Adagrad(0.1f), RowwiseAdagrad(0.1f), Adam(0.1f),
                                AdamW(0.1f), AmsGrad(0.1f), Ftrl(0.1f)}) {
    TANDEM_EXPECT_OK(ValidateTableConfig(EmbeddingTable("t", 8, optimizer, Zeros())));
  }
  for (const auto& initializer :
       {Zeros(), Constant(2), Uniform(-1, 1), Normal(0, 1), TruncatedNormal(0, 1), Xavier()}) {
    TANDEM_EXPECT_OK(ValidateTableConfig(DenseTable("t", 5000, Sgd(0.1f), initializer)));
  }
  for (const auto& mode : {Sync(), Bounded(3), Async()}) {
    v1::TableConfig config = Valid();
    *config.mutable_update_mode() = mode;
    TANDEM_EXPECT_OK(ValidateTableConfig(config));
  }
}

TEST(TableTest, FactoriesFillInTheDefaultsOfThePapers) {
  EXPECT_EQ(Momentum(0.1f).momentum(), 0.9f);
  EXPECT_EQ(Adagrad(0.1f).epsilon(), 1e-10f);
  EXPECT_EQ(Adagrad(0.1f).initial_accumulator(), 0.0f);
  EXPECT_EQ(Adam(0.1f).beta1(), 0.9f);
  EXPECT_EQ(Adam(0.1f).beta2(), 0.999f);
  EXPECT_EQ(Adam(0.1f).epsilon(), 1e-8f);
  EXPECT_EQ(Ftrl(0.1f).learning_rate_power(), -0.5f);
  EXPECT_EQ(Ftrl(0.1f).initial_accumulator(), 0.1f);
  EXPECT_EQ(Xavier().gain(), 1.0f);
  EXPECT_EQ(Valid().num_workers(), 1);
  EXPECT_EQ(Valid().update_mode().kind(), v1::UpdateMode::SYNC);
  EXPECT_EQ(DenseTable("d", 10, Sgd(1), Zeros()).elements(), 10);
  EXPECT_EQ(DenseTable("d", 10, Sgd(1), Zeros()).kind(), v1::TableConfig::DENSE);
}

// The default arguments of table.h are those that the kinds describe; only learning rates are the caller's to
// choose.
TEST(TableTest, FactoriesAgreeWithTheDefaultsOfTheirKinds) {
  for (const v1::OptimizerConfig& made : {Sgd(0.1f), Momentum(0.1f), Adagrad(0.1f), RowwiseAdagrad(0.1f),
                                          Adam(0.1f), AdamW(0.1f), AmsGrad(0.1f), Ftrl(0.1f)}) {
    v1::OptimizerConfig described = DefaultOptimizer(made.kind());
    described.set_learning_rate(0.1f);
    EXPECT_EQ(made.SerializeAsString(), described.SerializeAsString()) << made.kind();
  }
  EXPECT_EQ(Xavier().SerializeAsString(), DefaultInitializer("xavier").SerializeAsString());
}

struct BadCase {
  const char* what;
  std::function<void(v1::TableConfig*)> spoil;
  const char* message;  // part of what the error must say
};

class BadTableTest : public ::testing::TestWithParam<BadCase> {};

TEST_P(BadTableTest, IsRefusedNamingTheTableAndTheField) {
  v1::TableConfig config = Valid();
  GetParam().spoil(&config);
  EXPECT_THAT(ValidateTableConfig(config),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       AllOf(HasSubstr("table '"), HasSubstr(GetParam().message))));
}

INSTANTIATE_TEST_SUITE_P(
    Fields, BadTableTest,
    ::testing::Values(
        BadCase{"EmptyName", [](auto* c) { c->set_name(""); }, "name must be 1 to 128"},
        BadCase{"LongName", [](auto* c) { c->set_name(std::string(129, 'a')); }, "name must be 1 to 128"},
        BadCase{"PathName", [](auto* c) { c->set_name("../etc"); }, "name must be"},
        BadCase{"SlashName", [](auto* c) { c->set_name("a/b"); }, "name must be"},
        BadCase{"BinaryName", [](auto* c) { c->set_name(std::string("a\n\0b", 4)); },
                "table 'a\\n\\x00\\x62'"},
        BadCase{"DimZero", [](auto* c) { c->set_dim(0); }, "dim is 0; it must be in [1, 65536]"},
        BadCase{"DimHuge", [](auto* c) { c->set_dim(65537); }, "dim is 65537"},
        BadCase{"KindUnknown", [](auto* c) { c->set_kind(static_cast<v1::TableConfig::Kind>(7)); },
                "kind is 7"},
        BadCase{"DenseEmpty", [](auto* c) { c->set_kind(v1::TableConfig::DENSE); }, "elements is 0"},
        BadCase{"DenseHuge",
                [](auto* c) {
                  c->set_kind(v1::TableConfig::DENSE);
                  c->set_elements(uint64_t{1} << 60);
                },
                "elements is 1152921504606846976"},
        BadCase{"EmbeddingElements", [](auto* c) { c->set_elements(3); }, "only a DENSE table"},
        BadCase{"NoWorkers", [](auto* c) { c->set_num_workers(0); }, "num_workers is 0"},
        BadCase{"OptimizerMisspelt", [](auto* c) { c->mutable_optimizer()->set_kind("adagard"); },
                "did you mean 'adagrad'? known: sgd, momentum, adagrad, rowwise_adagrad, adam, adamw, "
                "amsgrad, ftrl"},
        BadCase{"OptimizerMissing", [](auto* c) { c->clear_optimizer(); }, "optimizer.kind is ''"},
        BadCase{"InitializerMisspelt", [](auto* c) { c->mutable_initializer()->set_kind("unifrom"); },
                "did you mean 'uniform'?"},
        BadCase{"InitializerMissing", [](auto* c) { c->clear_initializer(); }, "initializer.kind is ''"},
        BadCase{"RateZero", [](auto* c) { c->mutable_optimizer()->set_learning_rate(0); },
                "learning_rate is 0"},
        BadCase{"RateNan", [](auto* c) { c->mutable_optimizer()->set_learning_rate(kNan); },
                "learning_rate is nan"},
        BadCase{"L2Negative", [](auto* c) { c->mutable_optimizer()->set_l2(-1); }, "l2 is -1"},
        BadCase{"L2Infinite", [](auto* c) { c->mutable_optimizer()->set_l2(kInf); }, "l2 is inf"},
        BadCase{"Momentum", [](auto* c) { *c->mutable_optimizer() = Momentum(0.1f, 1.0f); }, "momentum is 1"},
        BadCase{"Epsilon", [](auto* c) { *c->mutable_optimizer() = Adagrad(0.1f, 0, 0); }, "epsilon is 0"},
        BadCase{"Accumulator", [](auto* c) { *c->mutable_optimizer() = RowwiseAdagrad(0.1f, -1); },
                "initial_accumulator is -1"},
        BadCase{"Beta1", [](auto* c) { *c->mutable_optimizer() = Adam(0.1f, 1.0f); }, "beta1 is 1"},
        BadCase{"Beta2", [](auto* c) { *c->mutable_optimizer() = Adam(0.1f, 0.9f, kNan); }, "beta2 is nan"},
        BadCase{"AdamEpsilon", [](auto* c) { *c->mutable_optimizer() = Adam(0.1f, 0.9f, 0.9f, 0); },
                "epsilon is 0"},
        BadCase{"FtrlL1", [](auto* c) { *c->mutable_optimizer() = Ftrl(0.1f, -1); }, "l1 is -1"},
        BadCase{"FtrlAccumulator", [](auto* c) { *c->mutable_optimizer() = Ftrl(0.1f, 0, 0, 0); },
                "initial_accumulator is 0"},
        BadCase{"FtrlPower",
                [](auto* c) {
                  *c->mutable_optimizer() = Ftrl(0.1f);
                  c->mutable_optimizer()->set_learning_rate_power(0.5f);
                },
                "learning_rate_power is 0.5"},
        BadCase{"ConstantNan", [](auto* c) { *c->mutable_initializer() = Constant(kNan); }, "value is nan"},
        BadCase{"UniformBackwards", [](auto* c) { *c->mutable_initializer() = Uniform(1, -1); },
                "low <= high"},
        BadCase{"UniformOverflow", [](auto* c) { *c->mutable_initializer() = Uniform(-3e38f, 3e38f); },
                "finite"},
        BadCase{"NormalStddev", [](auto* c) { *c->mutable_initializer() = Normal(0, -1); }, "stddev >= 0"},
        BadCase{"TruncatedMean", [](auto* c) { *c->mutable_initializer() = TruncatedNormal(kInf, 1); },
                "finite"},
        BadCase{"XavierGain", [](auto* c) { *c->mutable_initializer() = Xavier(0); }, "gain is 0"},
        BadCase{"ModeUnknown",
                [](auto* c) { c->mutable_update_mode()->set_kind(static_cast<v1::UpdateMode::Kind>(9)); },
                "update_mode.kind is 9"},
        BadCase{"BoundedZero", [](auto* c) { *c->mutable_update_mode() = Bounded(0); }, "staleness is 0"},
        BadCase{"SyncStaleness", [](auto* c) { c->mutable_update_mode()->set_staleness(2); },
                "only BOUNDED"}),
    [](const ::testing::TestParamInfo<BadCase>& info) { return info.param.what; });

TEST(TableTest, ANameNothingLikeAKnownOneGetsNoSuggestion) {
  v1::TableConfig config = Valid();
  config.mutable_optimizer()->set_kind("newton");
  EXPECT_THAT(ValidateTableConfig(config).message(),
              AllOf(HasSubstr("known: sgd"), Not(HasSubstr("did you mean"))));
}

TEST(TableTest, PoliciesThatContradictEachOtherAreNamed) {
  const auto expect = [](const std::function<void(v1::TableConfig*)>& change, const std::string& text) {
    v1::TableConfig config = Valid();
    change(&config);
    EXPECT_THAT(ValidateTableConfig(config),
                StatusIs(absl::StatusCode::kInvalidArgument, AllOf(HasSubstr("'user'"), HasSubstr(text))));
  };
  expect([](v1::TableConfig* c) { c->set_stochastic_rounding(true); }, "stochastic_rounding");
  expect([](v1::TableConfig* c) { c->set_row_type(static_cast<v1::TableConfig::RowType>(9)); },
         "row_type is 9");
  expect([](v1::TableConfig* c) { c->set_byte_budget(1 << 20); }, "eviction.kind");
  expect([](v1::TableConfig* c) { *c->mutable_eviction() = EvictLru(); }, "byte_budget is 0");
  expect([](v1::TableConfig* c) { c->set_spill(true); }, "spill is set, but eviction.kind is 'none'");
  expect(
      [](v1::TableConfig* c) {
        c->set_spill(true);
        *c->mutable_eviction() = EvictAfter(5);
      },
      "spill is set, but eviction.kind is 'ttl'");
  expect(
      [](v1::TableConfig* c) {
        c->set_spill(true);
        *c->mutable_eviction() = EvictLfu();
      },
      "byte_budget is 0");
  expect(
      [](v1::TableConfig* c) {
        *c->mutable_eviction() = EvictLru();
        c->set_byte_budget(100);
      },
      "byte_budget is 100");
  expect([](v1::TableConfig* c) { c->mutable_admission()->set_kind("never"); }, "admission.kind");
  expect(
      [](v1::TableConfig* c) {
        *c = DenseTable("user", 100, Sgd(1), Zeros());
        c->set_row_type(v1::TableConfig::F16);
      },
      "DENSE");
  v1::TableConfig config = Valid();
  *config.mutable_eviction() = EvictAfter(5);
  TANDEM_EXPECT_OK(ValidateTableConfig(config));
}

TEST(TableTest, UpdateModesAreWrittenAndReadBack) {
  for (const char* text : {"sync", "bounded:4", "async", "gba:0", "gba:8", "gba:8:16"}) {
    TANDEM_ASSERT_OK_AND_ASSIGN(const v1::UpdateMode mode, ParseUpdateMode(text));
    EXPECT_EQ(FormatUpdateMode(mode), text);
  }
  for (const char* text : {"", "sink", "sync:1", "bounded", "bounded:", "bounded:0", "bounded:x",
                           "bounded:-1", "async:2", "gba", "gba:1:2:3", "gba:1:9999999", "gba: 1:"}) {
    EXPECT_THAT(ParseUpdateMode(text), StatusIs(absl::StatusCode::kInvalidArgument)) << text;
  }
  EXPECT_THAT(ParseUpdateMode("gab:3"), StatusIs(absl::StatusCode::kInvalidArgument,
                                                 HasSubstr("'gab:3' is none of sync, bounded:STALENESS")));
  v1::UpdateMode mode = Async();
  mode.set_global_batch(3);
  EXPECT_THAT(ValidateUpdateMode(mode),
              StatusIs(absl::StatusCode::kInvalidArgument, HasSubstr("only GBA has a global batch")));
}

}  // namespace
}  // namespace tandem::ps

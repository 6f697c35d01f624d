// SPDX-License-Identifier: Apache-2.0
#include "base/suggest.h"

#include <string>
#include <vector>

#include "gtest/gtest.h"

namespace tandem {
namespace {

const std::vector<absl::string_view> kOptimizers = {"sgd",  "momentum", "adagrad", "rowwise_adagrad",
                                                    "adam", "ftrl"};

TEST(SuggestTest, FindsTheNameThatWasMeant) {
  const struct {
    const char* typed;
    const char* meant;
  } kCases[] = {
      {"adagrda", "adagrad"},                 // adjacent letters swapped
      {"adagra", "adagrad"},                  // a letter missing
      {"adagradd", "adagrad"},                // a letter too many
      {"sdg", "sgd"},                         // one change in three letters is still near
      {"rowise_adagrad", "rowwise_adagrad"},  // the longer one is nearer than adagrad
      {"adam", "adam"},                       // itself
      {"lamb", ""},
      {"", ""},
      {"x", ""},
      {"completely_different", ""},
  };
  for (const auto& c : kCases) EXPECT_EQ(ClosestName(c.typed, kOptimizers), c.meant) << c.typed;
}

TEST(SuggestTest, HugeNamesAndEmptyListsAreNoProblem) {
  EXPECT_EQ(ClosestName(std::string(1 << 20, 'a'), kOptimizers), "");
  EXPECT_EQ(ClosestName("adam", {}), "");
}

TEST(SuggestTest, TheTextNamesTheChoices) {
  EXPECT_EQ(DidYouMean("adan", kOptimizers),
            " (did you mean 'adam'? known: sgd, momentum, adagrad, rowwise_adagrad, adam, ftrl)");
  EXPECT_EQ(DidYouMean("zzz", {"sgd", "adam"}), " (known: sgd, adam)");
}

}  // namespace
}  // namespace tandem

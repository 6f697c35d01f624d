// SPDX-License-Identifier: Apache-2.0
#include "base/kind_registry.h"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "base/config_field.h"
#include "gmock/gmock.h"
#include "gtest/gtest.h"
#include "tests/testing/status_matchers.h"

namespace tandem {
namespace {

using ::tandem::testing::StatusIs;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

struct ShapeOptions {
  std::string kind = "circle";
  float radius = 1;
  std::vector<int> sides = {3, 4};
  uint64_t seed = 7;
};

using ShapeRegistry = KindRegistry<ShapeOptions, int>;

ShapeRegistry MakeShapes() {
  return {"shape",
          {{.name = "circle",
            .fields = {MemberField<&ShapeOptions::radius>({.name = "radius",
                                                           .range = Above(0),
                                                           .default_value = 2,
                                                           .usual = true,
                                                           .allowed = " in metres"})},
            .build = 1},
           {.name = "polygon",
            .fields = {MemberField<&ShapeOptions::sides>({.name = "sides", .range = Between(1, 1 << 20)}),
                       MemberField<&ShapeOptions::seed>(
                           {.name = "seed", .error_name = "random_seed", .range = AtLeast(1)})},
            .check = [](const ShapeOptions& o) -> std::optional<FieldConflict> {
              if (!o.sides.empty()) return std::nullopt;
              return FieldConflict{.field = "sides", .job_message = "is empty", .message = "sides are none"};
            },
            .build = 2}}};
}

TEST(RangeTest, HoldsNoNumberThatIsNotFinite) {
  for (const Range& range : {Range(), AtLeast(0), Above(0), AtMost(0), Fraction()}) {
    EXPECT_FALSE(range.Holds(std::nan("")));
    EXPECT_FALSE(range.Holds(std::numeric_limits<double>::infinity()));
    EXPECT_FALSE(range.Holds(-std::numeric_limits<double>::infinity()));
  }
  EXPECT_TRUE(AtLeast(0).Holds(0));
  EXPECT_FALSE(Above(0).Holds(0));
  EXPECT_TRUE(AtMost(0).Holds(-1));
  EXPECT_FALSE(Fraction().Holds(1));
}

TEST(RangeTest, IsWrittenWithoutTheLimitsOfTypes) {
  EXPECT_EQ(Range().ToString(), "");
  EXPECT_EQ(AtLeast(1).ToString(), "of at least 1");
  EXPECT_EQ(Above(0).ToString(), "greater than 0");
  EXPECT_EQ(AtMost(0).ToString(), "of at most 0");
  EXPECT_EQ(Fraction().ToString(), "in [0, 1)");
  EXPECT_EQ(Between(1, 65536).ToString(), "in [1, 65536]");
  EXPECT_EQ(Between(1, 0x1p40).ToString(), "in [1, 2^40]");
  EXPECT_EQ(Between(1, std::numeric_limits<int>::max()).ToString(), "of at least 1");
  EXPECT_EQ(Between(1, std::numeric_limits<float>::max()).ToString(), "of at least 1");
}

TEST(FormatValueTest, WritesTheFewestDigitsThatComeBack) {
  EXPECT_EQ(FormatValue(FieldValue(0.1f)), "0.1");
  EXPECT_EQ(FormatValue(FieldValue(0.1)), "0.1");
  EXPECT_EQ(FormatValue(FieldValue(1.0f / 3)), "0.33333334");
  EXPECT_EQ(FormatValue(FieldValue(uint64_t{1} << 40)), "1099511627776");
  EXPECT_EQ(FormatValue(FieldValue(std::vector<int>{64, 32})), "[64, 32]");
  EXPECT_EQ(FormatValue(FieldValue(std::string("dot"))), "dot");
}

TEST(ValidateFieldTest, ATextIsOneOfItsChoices) {
  const FieldInfo info{.name = "color", .choices = {"red", "blue"}};
  EXPECT_TRUE(ValidateField("shape", info, std::string("blue")).ok());
  EXPECT_THAT(ValidateField("shape", info, std::string("green")),
              StatusIs(absl::StatusCode::kInvalidArgument,
                       HasSubstr("shape.color is 'green'; it must be one of red, blue")));
}

TEST(KindRegistryTest, FindsKindsAndSuggestsNames) {
  const ShapeRegistry shapes = MakeShapes();
  EXPECT_THAT(shapes.names(), ElementsAre("circle", "polygon"));
  EXPECT_EQ((*shapes.Get("polygon"))->build, 2);
  EXPECT_THAT(
      shapes.Get("cirlce"),
      StatusIs(
          absl::StatusCode::kInvalidArgument,
          HasSubstr(
              "shape.kind is 'cirlce', which is unknown (did you mean 'circle'? known: circle, polygon)")));
}

TEST(KindRegistryTest, ChoosingAKindSetsItsDefaults) {
  const ShapeRegistry shapes = MakeShapes();
  ShapeOptions options = shapes.Default("circle");
  EXPECT_EQ(options.radius, 2);
  options.radius = 5;
  shapes.Choose("polygon", &options);
  EXPECT_EQ(options.kind, "polygon");
  EXPECT_EQ(options.radius, 5);  // polygons have none
  EXPECT_THAT(options.sides, ElementsAre(3, 4));
  std::vector<absl::string_view> fields;
  for (const auto& field : shapes.AllFields()) fields.push_back(field.info.name);
  EXPECT_THAT(fields, ElementsAre("radius", "sides", "seed"));
}

TEST(KindRegistryTest, WrongFieldsAreNamed) {
  const ShapeRegistry shapes = MakeShapes();
  const auto error = [&](const ShapeOptions& options) {
    return std::string(shapes.Validate(**shapes.Get(options.kind), options).message());
  };
  EXPECT_EQ(error({.kind = "circle", .radius = 3}), "");
  EXPECT_EQ(error({.kind = "circle", .radius = -1}),
            "shape.radius is -1; it must be finite and > 0 (2 is usual) in metres");
  EXPECT_EQ(error({.kind = "polygon", .radius = -1}), "");
  EXPECT_EQ(error({.kind = "polygon", .sides = {3, 0}}),
            "shape.sides is 0; it must be a list of whole numbers in [1, 2^20]");
  EXPECT_EQ(FormatLimit(16777215), "16777215");
  EXPECT_EQ(FormatLimit(1e12), "1000000000000");
  EXPECT_EQ(FormatLimit(1 << 24), "2^24");
  EXPECT_EQ(FormatLimit(0.1), "0.1");
  EXPECT_EQ(FormatLimit(1e-8), "1e-8");
  EXPECT_EQ(FormatLimit(-0.5), "-0.5");
  EXPECT_EQ(error({.kind = "polygon", .sides = {}}), "shape.sides are none");
  EXPECT_EQ(error({.kind = "polygon", .seed = 0}), "shape.random_seed is 0; it must be >= 1");
  const ShapeOptions other{.kind = "polygon", .radius = -1};
  EXPECT_THAT(std::string(shapes.ValidateAllFields(**shapes.Get("polygon"), other).message()),
              HasSubstr("shape.radius is -1"));
}

}  // namespace
}  // namespace tandem

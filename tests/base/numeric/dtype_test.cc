// SPDX-License-Identifier: Apache-2.0
#include "base/numeric/dtype.h"

#include <cstddef>
#include <set>
#include <string>
#include <type_traits>

#include "gtest/gtest.h"

namespace tandem {
namespace {

TEST(DTypeTest, NumbersThatTravelBetweenProcessesStayAsTheyAre) {
  EXPECT_EQ(static_cast<int>(DType::kU8), 0);
  EXPECT_EQ(static_cast<int>(DType::kI8), 1);
  EXPECT_EQ(static_cast<int>(DType::kI32), 2);
  EXPECT_EQ(static_cast<int>(DType::kI64), 3);
  EXPECT_EQ(static_cast<int>(DType::kF16), 4);
  EXPECT_EQ(static_cast<int>(DType::kBF16), 5);
  EXPECT_EQ(static_cast<int>(DType::kF32), 6);
  EXPECT_EQ(static_cast<int>(DType::kF64), 7);
}

TEST(DTypeTest, SizeNameAndTypeBelongTogether) {
  std::set<std::string> names;
  for (int number = 0; number < kNumDTypes; ++number) {
    const DType dtype = static_cast<DType>(number);
    names.emplace(Name(dtype));
    DispatchDType(dtype, [&](auto value) {
      using T = decltype(value);
      EXPECT_EQ(DTypeOf<T>::value, dtype);
      EXPECT_EQ(sizeof(T), SizeOf(dtype)) << Name(dtype);
      EXPECT_EQ(!std::is_integral_v<T>, IsFloatingPoint(dtype)) << Name(dtype);
    });
  }
  EXPECT_EQ(names, std::set<std::string>({"u8", "i8", "i32", "i64", "f16", "bf16", "f32", "f64"}));
}

TEST(DTypeTest, ANumberThatIsNoneHasNoSizeAndSaysSo) {
  for (const int number : {kNumDTypes, 100, 255}) {
    EXPECT_EQ(SizeOf(static_cast<DType>(number)), 0u);
    EXPECT_EQ(Name(static_cast<DType>(number)), "unknown dtype");
  }
}

TEST(DTypeTest, BytesByAnyNameAreElementsAndOtherTypesAreNot) {
  EXPECT_EQ(DTypeOf<char>::value, DType::kU8);
  EXPECT_EQ(DTypeOf<std::byte>::value, DType::kU8);
  static_assert(ElementType<float> && ElementType<const float> && ElementType<BFloat16>);
  static_assert(!ElementType<bool> && !ElementType<uint32_t> && !ElementType<std::string>);
}

}  // namespace
}  // namespace tandem

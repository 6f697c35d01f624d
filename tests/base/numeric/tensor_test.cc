// SPDX-License-Identifier: Apache-2.0
#include "base/numeric/tensor.h"

#include <array>
#include <cstdint>
#include <type_traits>
#include <vector>

#include "gtest/gtest.h"

namespace tandem {
namespace {

// Returns the view that a function with a view parameter gets.
ConstTensorView Read(ConstTensorView view) { return view; }
TensorView Write(TensorView view) { return view; }

TEST(TensorTest, AViewOfAContainerHasItsAddressCountAndType) {
  std::vector<double> vector(5);
  std::array<BFloat16, 3> array;
  EXPECT_EQ(Read(vector).data, vector.data());
  EXPECT_EQ(Read(vector).count, 5u);
  EXPECT_EQ(Read(vector).dtype, DType::kF64);
  EXPECT_EQ(Read(vector).bytes(), 40u);
  EXPECT_EQ(Write(vector).data, vector.data());
  EXPECT_EQ(Write(array).dtype, DType::kBF16);
  EXPECT_EQ(Write(array).bytes(), 6u);
  EXPECT_EQ(Read(array).device, Device::Cpu());
}

TEST(TensorTest, AViewOfASpanIsTheSame) {
  std::vector<int32_t> values(7);
  const absl::Span<int32_t> writable = absl::MakeSpan(values);
  const absl::Span<const int32_t> readable = values;
  EXPECT_EQ(Write(writable.subspan(2)).data, &values[2]);
  EXPECT_EQ(Write(writable.subspan(2)).count, 5u);
  EXPECT_EQ(Read(readable).data, values.data());
  EXPECT_EQ(Read(writable).dtype, DType::kI32);
}

TEST(TensorTest, WhatIsOnlyReadableGivesNoWritableView) {
  static_assert(!std::is_convertible_v<const std::vector<float>&, TensorView>);
  static_assert(!std::is_convertible_v<absl::Span<const float>, TensorView>);
  static_assert(!std::is_convertible_v<ConstTensorView, TensorView>);
  static_assert(std::is_convertible_v<const std::vector<float>&, ConstTensorView>);
  static_assert(std::is_convertible_v<TensorView, ConstTensorView>);
  static_assert(!std::is_convertible_v<std::vector<bool>&, ConstTensorView>);
  static_assert(!std::is_convertible_v<std::vector<uint32_t>&, ConstTensorView>);
}

TEST(TensorTest, ASubviewStartsAtItsOffsetOnTheSameDevice) {
  std::vector<Float16> values(10);
  const TensorView all(values.data(), values.size(), DType::kF16, Device::Cuda(3));
  const TensorView part = all.Sub(4, 5);
  EXPECT_EQ(part.data, &values[4]);
  EXPECT_EQ(part.count, 5u);
  EXPECT_EQ(part.dtype, DType::kF16);
  EXPECT_EQ(part.device, Device::Cuda(3));
  EXPECT_EQ(all.Sub(10, 0).count, 0u);
  const ConstTensorView constant = part;
  EXPECT_EQ(constant.data, part.data);
  EXPECT_EQ(constant.bytes(), 10u);
}

TEST(TensorTest, AnEmptyViewIsNothing) {
  EXPECT_EQ(TensorView().data, nullptr);
  EXPECT_EQ(ConstTensorView().bytes(), 0u);
  EXPECT_EQ(Read(std::vector<float>()).count, 0u);
}

TEST(TensorTest, DevicesAreEqualByKindAndNumber) {
  EXPECT_EQ(Device::Cpu(), Device());
  EXPECT_FALSE(Device::Cuda(0) == Device::Cpu());
  EXPECT_FALSE(Device::Cuda(0) == Device::Cuda(1));
}

}  // namespace
}  // namespace tandem

// SPDX-License-Identifier: Apache-2.0
// Reductions of f32 and f64.

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "collectives/reduce/float_kernels.cc"
#include "hwy/foreach_target.h"  // compiles this file once per instruction set; before the others

#include "collectives/reduce/float_operators-inl.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::collectives::internal {
namespace HWY_NAMESPACE {

void F32(const Reduction& r) { ReduceFloating<Plain<float>>(r); }
void F64(const Reduction& r) { ReduceFloating<Plain<double>>(r); }

}  // namespace HWY_NAMESPACE
}  // namespace tandem::collectives::internal
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem::collectives::internal {

HWY_EXPORT(F32);
HWY_EXPORT(F64);
void ReduceF32(const Reduction& r) { HWY_DYNAMIC_DISPATCH(F32)(r); }
void ReduceF64(const Reduction& r) { HWY_DYNAMIC_DISPATCH(F64)(r); }

}  // namespace tandem::collectives::internal
#endif  // HWY_ONCE

// SPDX-License-Identifier: Apache-2.0
#include "base/numeric/dtype.h"

namespace tandem {

absl::string_view Name(DType dtype) {
  switch (dtype) {
    case DType::kU8:
      return "u8";
    case DType::kI8:
      return "i8";
    case DType::kI32:
      return "i32";
    case DType::kI64:
      return "i64";
    case DType::kF16:
      return "f16";
    case DType::kBF16:
      return "bf16";
    case DType::kF32:
      return "f32";
    case DType::kF64:
      return "f64";
  }
  return "unknown dtype";
}

}  // namespace tandem

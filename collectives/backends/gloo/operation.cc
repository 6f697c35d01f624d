#include "collectives/backends/gloo/operation.h"

#include "absl/strings/str_cat.h"

namespace tandem::collectives::gloo_group {
namespace {

const char* Name(DType dtype) {
  switch (dtype) {
    case DType::kByte:
      return "bytes";
    case DType::kF32:
      return "f32";
    case DType::kF64:
      return "f64";
    case DType::kI64:
      return "i64";
  }
  return "unknown type";
}

const char* ReduceName(uint32_t reduce) {
  switch (static_cast<ReduceOp>(reduce)) {
    case ReduceOp::kSum:
      return "sum";
    case ReduceOp::kAvg:
      return "avg";
    case ReduceOp::kMin:
      return "min";
    case ReduceOp::kMax:
      return "max";
  }
  return "unknown reduction";
}

}  // namespace

bool Agree(const Operation& a, const Operation& b) {
  return a.kind == b.kind && a.sequence == b.sequence && a.dtype == b.dtype && a.reduce == b.reduce &&
         a.root == b.root && (a.count == b.count || a.kind == OpKind::kAllGatherBytes);
}

std::string Describe(const Operation& o) {
  const std::string number = absl::StrCat(" #", o.sequence);
  switch (o.kind) {
    case OpKind::kAllReduce:
      return absl::StrCat("all_reduce", number, " (", ReduceName(o.reduce), " of ", Name(o.dtype), " x ",
                          o.count, ")");
    case OpKind::kBroadcast:
      return absl::StrCat("broadcast", number, " (", o.count, " bytes from rank ", o.root, ")");
    case OpKind::kAllGather:
      return absl::StrCat("all_gather", number, " (", o.count, " bytes of each rank)");
    case OpKind::kAllGatherBytes:
      return absl::StrCat("all_gather_bytes", number);
    case OpKind::kBarrier:
      return absl::StrCat("barrier", number);
    case OpKind::kLeave:
      return absl::StrCat("leaving the group", number);
  }
  return absl::StrCat("unknown operation", number);
}

}  // namespace tandem::collectives::gloo_group

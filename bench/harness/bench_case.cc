// SPDX-License-Identifier: Apache-2.0
#include "bench/harness/bench_case.h"

#include <algorithm>
#include <string>

#include "absl/strings/str_cat.h"
#include "base/suggest.h"

namespace tandem::bench {
namespace {

constexpr BenchOp kOps[] = {BenchOp::kAllReduce,     BenchOp::kBroadcast, BenchOp::kAllGather,
                            BenchOp::kReduceScatter, BenchOp::kAllToAll,  BenchOp::kBarrier,
                            BenchOp::kSendRecv};

bool HasParts(BenchOp op) {
  return op == BenchOp::kAllGather || op == BenchOp::kReduceScatter || op == BenchOp::kAllToAll;
}

}  // namespace

absl::Span<const BenchOp> AllBenchOps() { return kOps; }

absl::string_view Name(BenchOp op) {
  switch (op) {
    case BenchOp::kAllReduce:
      return "allreduce";
    case BenchOp::kBroadcast:
      return "broadcast";
    case BenchOp::kAllGather:
      return "all_gather";
    case BenchOp::kReduceScatter:
      return "reduce_scatter";
    case BenchOp::kAllToAll:
      return "all_to_all";
    case BenchOp::kBarrier:
      return "barrier";
    case BenchOp::kSendRecv:
      return "sendrecv";
  }
  return "";
}

absl::StatusOr<BenchOp> BenchOpByName(absl::string_view name) {
  std::vector<absl::string_view> names;
  for (const BenchOp op : kOps) {
    if (Name(op) == name) return op;
    names.push_back(Name(op));
  }
  return absl::InvalidArgumentError(
      absl::StrCat("there is no operation '", name, "'", DidYouMean(name, names)));
}

bool Reduces(BenchOp op) { return op == BenchOp::kAllReduce || op == BenchOp::kReduceScatter; }

bool HasInPlace(BenchOp op) { return Reduces(op) || op == BenchOp::kAllGather || op == BenchOp::kBroadcast; }

bool HasOutOfPlace(BenchOp op) { return op != BenchOp::kBroadcast; }

size_t BenchCase::part() const {
  const size_t parts = HasParts(op) ? static_cast<size_t>(ranks) : 1;
  return std::max<size_t>(bytes / SizeOf(dtype) / parts, bytes > 0 ? 1 : 0);
}
size_t BenchCase::count() const { return HasParts(op) ? part() * static_cast<size_t>(ranks) : part(); }
size_t BenchCase::in_count() const { return op == BenchOp::kAllGather ? part() : count(); }
size_t BenchCase::out_count() const { return op == BenchOp::kReduceScatter ? part() : count(); }

double BusFactor(BenchOp op, int ranks) {
  const double others = static_cast<double>(ranks - 1) / ranks;
  if (op == BenchOp::kAllReduce) return 2 * others;
  return HasParts(op) ? others : 1;
}

}  // namespace tandem::bench

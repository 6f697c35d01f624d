// SPDX-License-Identifier: Apache-2.0
#include "collectives/operation.h"

#include <algorithm>

#include "absl/strings/str_cat.h"

namespace tandem::collectives {
namespace {

// FNV-1a, the same on every machine.
uint64_t HashCount(uint64_t hash, uint64_t count) {
  for (int byte = 0; byte < 8; ++byte) {
    hash = (hash ^ ((count >> (8 * byte)) & 0xff)) * 0x100000001b3u;
  }
  return hash;
}

template <typename PartType>
void AddParts(absl::Span<const PartType> parts, bool even, bool all_ranks_know, Fingerprint* fingerprint) {
  if (even) {
    fingerprint->count = parts.empty() ? 0 : parts[0].count;
    return;
  }
  if (!all_ranks_know) return;
  uint64_t hash = 0xcbf29ce484222325u;
  for (const PartType& part : parts) {
    fingerprint->count += part.count;
    hash = HashCount(hash, part.count);
  }
  fingerprint->parts_hash = hash;
}

std::string Elements(const Fingerprint& f) {
  return f.even ? absl::StrCat(Name(f.dtype), " x ", f.count)
                : absl::StrCat(Name(f.dtype), ", uneven",
                               f.count > 0 ? absl::StrCat(", ", f.count, " in all") : "");
}

}  // namespace

absl::string_view Name(OpKind kind) {
  switch (kind) {
    case OpKind::kAllReduce:
      return "all_reduce";
    case OpKind::kReduce:
      return "reduce";
    case OpKind::kBroadcast:
      return "broadcast";
    case OpKind::kAllGather:
      return "all_gather";
    case OpKind::kGather:
      return "gather";
    case OpKind::kScatter:
      return "scatter";
    case OpKind::kReduceScatter:
      return "reduce_scatter";
    case OpKind::kAllToAll:
      return "all_to_all";
    case OpKind::kBarrier:
      return "barrier";
    case OpKind::kSend:
      return "send";
    case OpKind::kRecv:
      return "recv";
    case OpKind::kLeave:
      return "leaving the group";
  }
  return "unknown operation";
}

absl::string_view Name(ReduceOp reduce) {
  switch (reduce) {
    case ReduceOp::kSum:
      return "sum";
    case ReduceOp::kAvg:
      return "avg";
    case ReduceOp::kProduct:
      return "product";
    case ReduceOp::kMin:
      return "min";
    case ReduceOp::kMax:
      return "max";
    case ReduceOp::kBitAnd:
      return "band";
    case ReduceOp::kBitOr:
      return "bor";
    case ReduceOp::kBitXor:
      return "bxor";
    case ReduceOp::kPremulSum:
      return "premul_sum";
  }
  return "unknown reduction";
}

Fingerprint FingerprintOf(const Operation& o) {
  Fingerprint f;
  f.sequence = o.sequence;
  f.kind = o.kind;
  f.dtype = o.dtype;
  f.even = o.even;
  switch (o.kind) {
    case OpKind::kAllReduce:
      f.reduce = o.reduce;
      f.count = o.in.count;
      break;
    case OpKind::kReduce:
      f.reduce = o.reduce;
      f.root = o.root;
      f.count = o.in.count;
      break;
    case OpKind::kBroadcast:
      f.root = o.root;
      f.count = std::max(o.in.count, o.out.count);
      break;
    case OpKind::kAllGather:
      AddParts(o.outs, o.even, /*all_ranks_know=*/true, &f);
      break;
    case OpKind::kGather:
      f.root = o.root;
      if (o.even) f.count = o.in.count;
      break;
    case OpKind::kScatter:
      f.root = o.root;
      if (o.even) f.count = o.out.count;
      break;
    case OpKind::kReduceScatter:
      f.reduce = o.reduce;
      AddParts(o.ins, o.even, /*all_ranks_know=*/true, &f);
      break;
    case OpKind::kAllToAll:
      AddParts(o.ins, o.even, /*all_ranks_know=*/false, &f);
      break;
    case OpKind::kSend:
    case OpKind::kRecv:
      f.root = o.root;
      f.count = o.kind == OpKind::kSend ? o.in.count : o.out.count;
      break;
    case OpKind::kBarrier:
    case OpKind::kLeave:
      f.dtype = DType::kU8;
      f.even = 1;
      break;
  }
  if (o.context != 0) f.parts_hash = HashCount(f.parts_hash, o.context);
  return f;
}

bool Agree(const Fingerprint& a, const Fingerprint& b) {
  return a.sequence == b.sequence && a.count == b.count && a.parts_hash == b.parts_hash && a.root == b.root &&
         a.kind == b.kind && a.dtype == b.dtype && a.reduce == b.reduce && a.even == b.even;
}

std::string Describe(const Fingerprint& f) {
  const std::string name = absl::StrCat(Name(f.kind), " #", f.sequence);
  switch (f.kind) {
    case OpKind::kAllReduce:
    case OpKind::kReduceScatter:
      return absl::StrCat(name, " (", Name(f.reduce), " of ", Elements(f), ")");
    case OpKind::kReduce:
      return absl::StrCat(name, " (", Name(f.reduce), " of ", Elements(f), " to rank ", f.root, ")");
    case OpKind::kGather:
    case OpKind::kSend:
      return absl::StrCat(name, " (", Elements(f), " to rank ", f.root, ")");
    case OpKind::kBroadcast:
    case OpKind::kScatter:
      return absl::StrCat(name, " (", Elements(f), " from rank ", f.root, ")");
    case OpKind::kRecv:
      return absl::StrCat(name, " (", Elements(f), " from ",
                          f.root == kAnySource ? "any rank" : absl::StrCat("rank ", f.root), ")");
    case OpKind::kAllGather:
    case OpKind::kAllToAll:
      return absl::StrCat(name, " (", Elements(f), ")");
    case OpKind::kBarrier:
    case OpKind::kLeave:
      break;
  }
  return name;
}

std::string Describe(const Operation& o) {
  std::string text = Describe(FingerprintOf(o));
  if ((o.kind == OpKind::kSend || o.kind == OpKind::kRecv) && o.tag != 0) {
    text.insert(text.size() - 1, absl::StrCat(", tag ", o.tag));
  }
  return text;
}

std::string Disagreement(absl::string_view group, int rank_a, const Fingerprint& a, int rank_b,
                         const Fingerprint& b) {
  const bool in_order = rank_a < rank_b;
  return absl::StrCat(
      "ranks of group '", group, "' disagree: rank ", std::min(rank_a, rank_b), " calls ",
      Describe(in_order ? a : b), ", rank ", std::max(rank_a, rank_b), " calls ", Describe(in_order ? b : a),
      "; all ranks must call the same operations in the same order with the same dtypes and sizes");
}

size_t CountTo(const Operation& o, int rank, int to) {
  switch (o.kind) {
    case OpKind::kScatter:
      return rank == o.root ? o.ins[to].count : 0;
    case OpKind::kReduceScatter:
    case OpKind::kAllToAll:
      return o.ins[to].count;
    case OpKind::kAllGather:
      return o.in.count;
    case OpKind::kGather:
    case OpKind::kReduce:
      return to == o.root ? o.in.count : 0;
    case OpKind::kBroadcast:
      return rank == o.root ? std::max(o.in.count, o.out.count) : 0;
    case OpKind::kAllReduce:
      return o.in.count;
    case OpKind::kSend:
      return to == o.root ? o.in.count : 0;
    default:
      return 0;
  }
}

size_t CountFrom(const Operation& o, int rank, int from) {
  switch (o.kind) {
    case OpKind::kAllGather:
    case OpKind::kAllToAll:
      return o.outs[from].count;
    case OpKind::kGather:
      return rank == o.root ? o.outs[from].count : 0;
    case OpKind::kReduce:
      return rank == o.root ? o.in.count : 0;
    case OpKind::kScatter:
    case OpKind::kBroadcast:
      return from == o.root ? o.out.count : 0;
    case OpKind::kReduceScatter:
      return o.out.count;
    case OpKind::kAllReduce:
      return o.in.count;
    case OpKind::kRecv:
      return from == o.root || o.root == kAnySource ? o.out.count : 0;
    default:
      return 0;
  }
}

}  // namespace tandem::collectives

// SPDX-License-Identifier: Apache-2.0
#include "collectives/shape.h"

#include "absl/strings/str_cat.h"

namespace tandem::collectives {

absl::Status CheckCollective(const Operation& o, int rank, int world_size) {
  auto wrong = [&](absl::string_view what) {
    return absl::InvalidArgumentError(absl::StrCat(Name(o.kind), " #", o.sequence, ": ", what));
  };
  if (o.kind < OpKind::kAllReduce || o.kind > OpKind::kBarrier) return wrong("it is no collective");
  const bool rooted = o.kind == OpKind::kReduce || o.kind == OpKind::kBroadcast ||
                      o.kind == OpKind::kGather || o.kind == OpKind::kScatter;
  if (rooted && (o.root < 0 || o.root >= world_size)) {
    return wrong(absl::StrCat("the root must be a rank from 0 to ", world_size - 1, ", not ", o.root));
  }
  const bool is_root = rooted && o.root == rank;
  const bool ins = o.kind == OpKind::kReduceScatter || o.kind == OpKind::kAllToAll ||
                   (o.kind == OpKind::kScatter && is_root);
  const bool outs =
      o.kind == OpKind::kAllGather || o.kind == OpKind::kAllToAll || (o.kind == OpKind::kGather && is_root);
  const size_t world = world_size;
  if ((ins && o.ins.size() != world) || (outs && o.outs.size() != world)) {
    return wrong(absl::StrCat("there must be one part for each of ", world, " ranks"));
  }
  size_t from = 0, to = 0;
  if (o.kind == OpKind::kAllReduce || (o.kind == OpKind::kReduce && is_root) ||
      (o.kind == OpKind::kBroadcast && is_root && o.out.count > 0)) {
    from = o.in.count, to = o.out.count;
  } else if (o.kind == OpKind::kAllToAll) {
    from = o.ins[rank].count, to = o.outs[rank].count;
  } else if (ins) {
    from = o.ins[rank].count, to = o.out.count;
  } else if (outs) {
    from = o.in.count, to = o.outs[rank].count;
  }
  if (from != to) {
    return wrong(absl::StrCat("this rank gives itself ", from, " elements and expects ", to));
  }
  return absl::OkStatus();
}

absl::Status CheckPointToPoint(const Operation& o, int rank, int world_size) {
  if (!IsPointToPoint(o.kind)) {
    return absl::InvalidArgumentError(absl::StrCat(Name(o.kind), " is not point to point"));
  }
  if (o.kind == OpKind::kRecv && o.root == kAnySource && world_size > 1) return absl::OkStatus();
  if (o.root >= 0 && o.root < world_size && o.root != rank) return absl::OkStatus();
  return absl::InvalidArgumentError(absl::StrCat(Describe(o), ": rank ", rank,
                                                 " exchanges messages with other ranks from 0 to ",
                                                 world_size - 1, " only"));
}

}  // namespace tandem::collectives

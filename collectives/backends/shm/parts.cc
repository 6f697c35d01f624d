// SPDX-License-Identifier: Apache-2.0
#include "collectives/backends/shm/parts.h"

#include <algorithm>
#include <cstring>

#include "base/round_up.h"
#include "collectives/backends/shm/copy.h"
#include "collectives/backends/shm/segment.h"

namespace tandem::collectives::shm {
namespace {

// The bytes of block k of a part of `count` elements.
struct Range {
  size_t begin, bytes;
};
Range RangeOf(const Operation& op, const Plan& plan, size_t k, size_t count) {
  const size_t n = count * SizeOf(op.dtype);
  const size_t begin = std::min(n, k * plan.chunk);
  return {begin, std::min(n - begin, plan.chunk)};
}

template <typename PartType>
size_t LargestCount(absl::Span<const PartType> parts) {
  size_t largest = 0;
  for (const PartType& part : parts) largest = std::max(largest, part.count);
  return largest;
}

// Copies block k of a part; does nothing if source and destination are the same memory (in place).
void CopyBlock(const Operation& op, const Plan& plan, size_t k, const void* from, const Part& to) {
  if (to.data == from || to.count == 0) return;
  const Range range = RangeOf(op, plan, k, to.count);
  if (range.bytes == 0) return;
  Copy(static_cast<char*>(to.data) + range.begin, static_cast<const char*>(from) + range.begin, range.bytes,
       plan.hint);
}

// Copies block k of a part out of a lane.
void CopyLane(const Operation& op, const Plan& plan, size_t k, const char* lane, const Part& to) {
  const Range range = RangeOf(op, plan, k, to.count);
  if (range.bytes == 0) return;
  Copy(static_cast<char*>(to.data) + range.begin, lane, range.bytes, plan.hint);
}

// Copies block k of a part into a lane.
void FillLane(const Operation& op, const Plan& plan, size_t k, const ConstPart& from, char* lane,
              LaneWriter* writer) {
  const Range range = RangeOf(op, plan, k, from.count);
  if (range.bytes == 0) return;
  const char* const bytes = static_cast<const char*>(from.data) + range.begin;
  if (writer != nullptr) {
    writer->Write(lane, bytes, range.bytes);
  } else {
    std::memcpy(lane, bytes, range.bytes);
  }
}

// out = op over ranks of (slots[s] + lane, of this rank: own), for block k of `out`.
void ReduceBlock(const Operation& op, const PartLocation& place, const Plan& plan, size_t k, const void* own,
                 absl::Span<const char* const> slots, size_t lane, const Part& out) {
  const Range range = RangeOf(op, plan, k, out.count);
  if (range.bytes == 0) return;
  const void* sources[kMaxRanks];
  for (int s = 0; s < place.world_size; ++s) {
    sources[s] = s == place.rank ? static_cast<const char*>(own) + range.begin : slots[s] + lane;
  }
  ReduceInRankOrder(op.reduce, op.dtype, absl::MakeConstSpan(sources, place.world_size), place.factors,
                    place.world_size, range.bytes / SizeOf(op.dtype),
                    static_cast<char*>(out.data) + range.begin, plan.hint);
}

}  // namespace

bool HasLanePerReader(OpKind kind) {
  return kind == OpKind::kScatter || kind == OpKind::kReduceScatter || kind == OpKind::kAllToAll;
}

size_t LargestPart(const Operation& op, int world_size) {
  size_t count = 0;
  switch (op.kind) {
    case OpKind::kAllGather:
      count = LargestCount(op.outs);
      break;
    case OpKind::kReduceScatter:
    case OpKind::kAllToAll:
      count = LargestCount(op.ins);
      break;
    case OpKind::kScatter:
      count = std::max(op.out.count, LargestCount(op.ins));
      break;
    case OpKind::kGather:
    case OpKind::kAllReduce:
    case OpKind::kReduce:
      count = op.in.count;
      break;
    case OpKind::kBroadcast:
      count = std::max(op.in.count, op.out.count);
      break;
    default:
      break;
  }
  return count * SizeOf(op.dtype);
}

Plan InlinePlan(const Operation& op, size_t largest_part, int world_size) {
  Plan plan;
  plan.lane_per_reader = HasLanePerReader(op.kind);
  plan.chunk = largest_part;
  plan.stride = RoundUp(largest_part, 8);
  plan.slot_bytes = plan.stride * (plan.lane_per_reader ? world_size : 1);
  return plan;
}

Plan StagedPlan(const Operation& op, size_t largest_part, int world_size, size_t block_bytes) {
  Plan plan;
  plan.lane_per_reader = HasLanePerReader(op.kind);
  const size_t lanes = plan.lane_per_reader ? world_size : 1;
  const size_t most = block_bytes / lanes / kLine * kLine;
  plan.blocks = std::max<size_t>(1, (largest_part + most - 1) / most);
  plan.chunk = RoundUp((largest_part + plan.blocks - 1) / plan.blocks, kLine);
  plan.stride = plan.chunk;
  plan.slot_bytes = plan.stride * lanes;
  const bool gathers = op.kind == OpKind::kAllGather || op.kind == OpKind::kAllToAll;
  if (largest_part * (gathers ? world_size : 1) > kStreamBytes) plan.hint = WriteHint::kStream;
  return plan;
}

void Pack(const Operation& op, const PartLocation& place, const Plan& plan, size_t k, char* slot,
          LaneWriter* writer) {
  switch (op.kind) {
    case OpKind::kBroadcast:
      if (place.rank == op.root) FillLane(op, plan, k, op.in, slot, writer);
      break;
    case OpKind::kReduce:
    case OpKind::kGather:
      if (place.rank != op.root) FillLane(op, plan, k, op.in, slot, writer);
      break;
    case OpKind::kAllReduce:
    case OpKind::kAllGather:
      FillLane(op, plan, k, op.in, slot, writer);
      break;
    case OpKind::kScatter:
      if (place.rank != op.root) break;
      [[fallthrough]];
    case OpKind::kReduceScatter:
    case OpKind::kAllToAll:
      for (int s = 0; s < place.world_size; ++s) {
        if (s != place.rank) FillLane(op, plan, k, op.ins[s], slot + s * plan.stride, writer);
      }
      break;
    default:
      break;
  }
}

void Unpack(const Operation& op, const PartLocation& place, const Plan& plan, size_t k,
            absl::Span<const char* const> slots) {
  const size_t lane = plan.lane_per_reader ? place.rank * plan.stride : 0;
  const bool is_root = place.rank == op.root;
  switch (op.kind) {
    case OpKind::kAllReduce:
      ReduceBlock(op, place, plan, k, op.in.data, slots, lane, op.out);
      break;
    case OpKind::kReduce:
      if (is_root) ReduceBlock(op, place, plan, k, op.in.data, slots, lane, op.out);
      break;
    case OpKind::kReduceScatter:
      ReduceBlock(op, place, plan, k, op.ins[place.rank].data, slots, lane, op.out);
      break;
    case OpKind::kBroadcast:
      if (is_root) {
        CopyBlock(op, plan, k, op.in.data, op.out);
      } else {
        CopyLane(op, plan, k, slots[op.root], op.out);
      }
      break;
    case OpKind::kScatter:
      if (is_root) {
        CopyBlock(op, plan, k, op.ins[place.rank].data, op.out);
      } else {
        CopyLane(op, plan, k, slots[op.root] + lane, op.out);
      }
      break;
    case OpKind::kGather:
      if (!is_root) break;
      [[fallthrough]];
    case OpKind::kAllGather:
    case OpKind::kAllToAll: {
      const bool all_to_all = op.kind == OpKind::kAllToAll;
      for (int i = 0; i < place.world_size; ++i) {
        const int s = (place.rank + i) % place.world_size;  // so that the readers start at different slots
        if (s != place.rank) {
          CopyLane(op, plan, k, slots[s] + lane, op.outs[s]);
        } else {
          CopyBlock(op, plan, k, all_to_all ? op.ins[s].data : op.in.data, op.outs[s]);
        }
      }
      break;
    }
    default:
      break;
  }
}

}  // namespace tandem::collectives::shm

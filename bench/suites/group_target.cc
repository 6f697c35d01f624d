// SPDX-License-Identifier: Apache-2.0
#include "bench/suites/group_target.h"

#include <string>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "base/suggest.h"
#include "collectives/reduce/reduce.h"

namespace tandem::bench {
namespace {

using collectives::PointToPoint;
using collectives::ProcessGroup;
using collectives::ReduceOp;
using collectives::Work;

class GroupTarget : public BenchTarget {
 public:
  GroupTarget(ProcessGroup* group, ReduceOp reduce) : group_(group) {
    reduce_.op = reduce;
    reduce_.factor = 1.0 / group->world_size();
  }

  int rank() const override { return group_->rank(); }
  std::string backend() const override { return group_->backend(); }

  absl::Status Prepare(const BenchCase& c, const BufferSets& buffers) override {
    op_ = c.op;
    ins_.clear();
    outs_.clear();
    batches_.clear();
    const int ranks = group_->world_size();
    const int right = (rank() + 1) % ranks, left = (rank() + ranks - 1) % ranks;
    for (size_t s = 0; s < buffers.size(); ++s) {
      ins_.emplace_back(buffers.in(s), c.in_count(), c.dtype);
      outs_.emplace_back(buffers.out(s), c.out_count(), c.dtype);
      batches_.push_back({{.kind = PointToPoint::Kind::kSend,
                           .peer = right,
                           .tensor = TensorView(buffers.in(s), c.in_count(), c.dtype)},
                          {.kind = PointToPoint::Kind::kRecv, .peer = left, .tensor = outs_.back()}});
    }
    return absl::OkStatus();
  }

  absl::Status Run(uint64_t first, uint64_t count) override {
    switch (op_) {
      case BenchOp::kAllReduce:
        return Loop(first, count, [&](size_t s) { return group_->AllReduce(ins_[s], outs_[s], reduce_); });
      case BenchOp::kBroadcast:
        return Loop(first, count, [&](size_t s) { return group_->Broadcast(outs_[s]); });
      case BenchOp::kAllGather:
        return Loop(first, count, [&](size_t s) { return group_->AllGather(ins_[s], outs_[s]); });
      case BenchOp::kReduceScatter:
        return Loop(first, count,
                    [&](size_t s) { return group_->ReduceScatter(ins_[s], outs_[s], reduce_); });
      case BenchOp::kAllToAll:
        return Loop(first, count, [&](size_t s) { return group_->AllToAll(ins_[s], outs_[s]); });
      case BenchOp::kBarrier:
        return Loop(first, count, [&](size_t s) { return group_->Barrier(); });
      case BenchOp::kSendRecv:
        break;
    }
    for (uint64_t i = first; i < first + count; ++i) {
      for (const Work& work : group_->BatchIsendIrecv(batches_[i & (batches_.size() - 1)])) {
        TANDEM_RETURN_IF_ERROR(work.Wait());
      }
    }
    return absl::OkStatus();
  }

  absl::Status Barrier() override { return group_->Barrier().Wait(); }
  absl::Status MaxOverRanks(absl::Span<double> values) override {
    return group_->AllReduce(values, {.op = ReduceOp::kMax}).Wait();
  }

 private:
  template <class Call>
  absl::Status Loop(uint64_t first, uint64_t count, const Call& call) {
    for (uint64_t i = first; i < first + count; ++i) {
      TANDEM_RETURN_IF_ERROR(call(i & (ins_.size() - 1)).Wait());
    }
    return absl::OkStatus();
  }

  ProcessGroup* const group_;
  collectives::AllReduceOptions reduce_;
  BenchOp op_ = BenchOp::kBarrier;
  std::vector<ConstTensorView> ins_;  // one per set of buffers
  std::vector<TensorView> outs_;
  std::vector<std::vector<PointToPoint>> batches_;
};

}  // namespace

std::unique_ptr<BenchTarget> MakeGroupTarget(ProcessGroup* group, ReduceOp reduce) {
  return std::make_unique<GroupTarget>(group, reduce);
}

absl::StatusOr<ReduceOp> ParseReduceOp(absl::string_view name, DType dtype) {
  std::vector<absl::string_view> names;
  for (int number = 0; number <= static_cast<int>(ReduceOp::kPremulSum); ++number) {
    const ReduceOp op = static_cast<ReduceOp>(number);
    names.push_back(Name(op));
    if (Name(op) != name) continue;
    const absl::Status supported = collectives::SupportsReduction(op, dtype);
    if (!supported.ok()) return absl::InvalidArgumentError(absl::StrCat("--op: ", supported.message()));
    return op;
  }
  return absl::InvalidArgumentError(
      absl::StrCat("--op: there is no reduction '", name, "'", DidYouMean(name, names)));
}

}  // namespace tandem::bench

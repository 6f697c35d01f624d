// SPDX-License-Identifier: Apache-2.0
#include "collectives/connect/solo_backend.h"

#include <cstring>

#include "collectives/reduce/reduce.h"

namespace tandem::collectives {
namespace {

class SoloBackend final : public Backend {
 public:
  absl::string_view name() const override { return "solo"; }

  absl::Status Supports(const Operation& o) const override {
    switch (o.kind) {
      case OpKind::kAllReduce:
      case OpKind::kReduce:
      case OpKind::kReduceScatter:
        return SupportsReduction(o.reduce, o.dtype);
      default:
        return absl::OkStatus();
    }
  }

  absl::Status Run(const Operation& o) override {
    const ConstPart in = o.ins.empty() ? o.in : o.ins[0];
    const Part out = o.outs.empty() ? o.out : o.outs[0];
    if (out.count == 0) return absl::OkStatus();
    const bool reduces =
        o.kind == OpKind::kAllReduce || o.kind == OpKind::kReduce || o.kind == OpKind::kReduceScatter;
    if (reduces && o.reduce == ReduceOp::kPremulSum) {
      ReduceInRankOrder(o.reduce, o.dtype, {in.data}, {o.factor}, 1, out.count, out.data);
    } else if (in.data != nullptr && in.data != out.data) {
      std::memcpy(out.data, in.data, out.count * SizeOf(o.dtype));
    }
    return absl::OkStatus();
  }

  void StartPointToPoint(const Operation&, Done done) override {
    done(absl::InvalidArgumentError("a world of one has nobody to send to"));
  }

  void Abort(const absl::Status&) override {}  // no operation ever waits
};

}  // namespace

std::unique_ptr<Backend> MakeSoloBackend() { return std::make_unique<SoloBackend>(); }

}  // namespace tandem::collectives

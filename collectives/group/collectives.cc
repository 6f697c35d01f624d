// SPDX-License-Identifier: Apache-2.0
// The single operations: checks of their arguments, and their translation into an Operation.

#include "absl/base/optimization.h"
#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "collectives/group/group.h"
#include "collectives/group/validation.h"

namespace tandem::collectives {

// Returns from a call that is refused, before anything is sent.
#define TANDEM_REFUSE_UNLESS(kind, check)                                      \
  do {                                                                         \
    if (absl::Status refused_ = (check); ABSL_PREDICT_FALSE(!refused_.ok())) { \
      return Work(Refuse(kind, refused_));                                     \
    }                                                                          \
  } while (false)

Work Group::AllReduce(ConstTensorView in, TensorView out, const AllReduceOptions& options) {
  TANDEM_REFUSE_UNLESS(OpKind::kAllReduce, CheckPair("in", in, "out", out));
  TANDEM_REFUSE_UNLESS(OpKind::kAllReduce, CheckSameCount("in", in, "out", out));
  TANDEM_REFUSE_UNLESS(OpKind::kAllReduce, CheckApart("in", in, "out", out, out.data));
  Call call(OpKind::kAllReduce, in.dtype, in.device);
  call.operation.reduce = options.op;
  call.operation.factor = options.factor;
  call.operation.in = {in.data, in.count};
  call.operation.out = {out.data, out.count};
  return Submit(&call, options.async, options.timeout, options.stream);
}

Work Group::Reduce(TensorView tensor, const ReduceOptions& options) {
  TANDEM_REFUSE_UNLESS(OpKind::kReduce, CheckTensor("the tensor", tensor));
  TANDEM_REFUSE_UNLESS(OpKind::kReduce, CheckRoot(options.root, world_size()));
  Call call(OpKind::kReduce, tensor.dtype, tensor.device);
  call.operation.reduce = options.op;
  call.operation.factor = options.factor;
  call.operation.root = options.root;
  call.operation.in = {tensor.data, tensor.count};
  if (rank() == options.root) call.operation.out = {tensor.data, tensor.count};
  return Submit(&call, options.async, options.timeout, options.stream);
}

Work Group::Broadcast(TensorView tensor, const RootOptions& options) {
  TANDEM_REFUSE_UNLESS(OpKind::kBroadcast, CheckTensor("the tensor", tensor));
  TANDEM_REFUSE_UNLESS(OpKind::kBroadcast, CheckRoot(options.root, world_size()));
  Call call(OpKind::kBroadcast, tensor.dtype, tensor.device);
  call.operation.root = options.root;
  if (rank() == options.root) call.operation.in = {tensor.data, tensor.count};
  call.operation.out = {tensor.data, tensor.count};
  return Submit(&call, options.async, options.timeout, options.stream);
}

Work Group::AllGather(ConstTensorView in, TensorView out, const CallOptions& options) {
  TANDEM_REFUSE_UNLESS(OpKind::kAllGather, CheckPair("in", in, "out", out));
  TANDEM_REFUSE_UNLESS(OpKind::kAllGather, CheckMultiple("out", out, "in", in, world_size()));
  const void* own = static_cast<const char*>(out.data) + static_cast<size_t>(rank()) * in.bytes();
  TANDEM_REFUSE_UNLESS(OpKind::kAllGather, CheckApart("in", in, "out", out, own));
  Call call(OpKind::kAllGather, in.dtype, in.device);
  call.operation.in = {in.data, in.count};
  call.SliceOuts(out, world_size());
  return Submit(&call, options.async, options.timeout, options.stream);
}

Work Group::AllGather(ConstTensorView in, absl::Span<const TensorView> outs, const CallOptions& options) {
  TANDEM_REFUSE_UNLESS(OpKind::kAllGather, CheckTensor("in", in));
  TANDEM_REFUSE_UNLESS(OpKind::kAllGather, CheckList("outs", outs, world_size(), in));
  TANDEM_REFUSE_UNLESS(OpKind::kAllGather, CheckSameCount("in", in, "this rank's own of outs", outs[rank()]));
  TANDEM_REFUSE_UNLESS(OpKind::kAllGather, CheckOutputsApart(outs, in, rank()));
  Call call(OpKind::kAllGather, in.dtype, in.device);
  call.operation.in = {in.data, in.count};
  call.SetOuts(outs);
  return Submit(&call, options.async, options.timeout, options.stream);
}

Work Group::Gather(ConstTensorView in, absl::Span<const TensorView> outs, const RootOptions& options) {
  TANDEM_REFUSE_UNLESS(OpKind::kGather, CheckTensor("in", in));
  TANDEM_REFUSE_UNLESS(OpKind::kGather, CheckRoot(options.root, world_size()));
  if (rank() == options.root) {
    TANDEM_REFUSE_UNLESS(OpKind::kGather, CheckList("outs", outs, world_size(), in));
    TANDEM_REFUSE_UNLESS(OpKind::kGather, CheckSameCount("in", in, "this rank's own of outs", outs[rank()]));
    TANDEM_REFUSE_UNLESS(OpKind::kGather, CheckOutputsApart(outs, in, rank()));
  } else if (!outs.empty()) {
    TANDEM_REFUSE_UNLESS(
        OpKind::kGather,
        absl::InvalidArgumentError("outs is given, but only the root's is filled; leave it empty"));
  }
  Call call(OpKind::kGather, in.dtype, in.device);
  call.operation.root = options.root;
  call.operation.in = {in.data, in.count};
  call.SetOuts(outs);
  return Submit(&call, options.async, options.timeout, options.stream);
}

Work Group::Scatter(absl::Span<const ConstTensorView> ins, TensorView out, const RootOptions& options) {
  TANDEM_REFUSE_UNLESS(OpKind::kScatter, CheckTensor("out", out));
  TANDEM_REFUSE_UNLESS(OpKind::kScatter, CheckRoot(options.root, world_size()));
  if (rank() == options.root) {
    TANDEM_REFUSE_UNLESS(OpKind::kScatter, CheckList("ins", ins, world_size(), out));
    TANDEM_REFUSE_UNLESS(OpKind::kScatter, CheckSameCount("out", out, "this rank's own of ins", ins[rank()]));
    TANDEM_REFUSE_UNLESS(OpKind::kScatter, CheckInputsApart(ins, out, rank()));
  } else if (!ins.empty()) {
    TANDEM_REFUSE_UNLESS(OpKind::kScatter, absl::InvalidArgumentError(
                                               "ins is given, but only the root's is sent; leave it empty"));
  }
  Call call(OpKind::kScatter, out.dtype, out.device);
  call.operation.root = options.root;
  call.operation.out = {out.data, out.count};
  call.SetIns(ins);
  return Submit(&call, options.async, options.timeout, options.stream);
}

Work Group::ReduceScatter(ConstTensorView in, TensorView out, const ReduceScatterOptions& options) {
  TANDEM_REFUSE_UNLESS(OpKind::kReduceScatter, CheckPair("in", in, "out", out));
  TANDEM_REFUSE_UNLESS(OpKind::kReduceScatter, CheckMultiple("in", in, "out", out, world_size()));
  const void* own =
      static_cast<const char*>(in.data) + static_cast<size_t>(rank()) * ConstTensorView(out).bytes();
  TANDEM_REFUSE_UNLESS(OpKind::kReduceScatter, CheckApart("out", out, "in", in, own));
  Call call(OpKind::kReduceScatter, in.dtype, in.device);
  call.operation.reduce = options.op;
  call.operation.factor = options.factor;
  call.operation.out = {out.data, out.count};
  call.SliceIns(in, world_size());
  return Submit(&call, options.async, options.timeout, options.stream);
}

Work Group::ReduceScatter(absl::Span<const ConstTensorView> ins, TensorView out,
                          const ReduceScatterOptions& options) {
  TANDEM_REFUSE_UNLESS(OpKind::kReduceScatter, CheckTensor("out", out));
  TANDEM_REFUSE_UNLESS(OpKind::kReduceScatter, CheckList("ins", ins, world_size(), out));
  TANDEM_REFUSE_UNLESS(OpKind::kReduceScatter,
                       CheckSameCount("out", out, "this rank's own of ins", ins[rank()]));
  TANDEM_REFUSE_UNLESS(OpKind::kReduceScatter, CheckInputsApart(ins, out, rank()));
  Call call(OpKind::kReduceScatter, out.dtype, out.device);
  call.operation.reduce = options.op;
  call.operation.factor = options.factor;
  call.operation.out = {out.data, out.count};
  call.SetIns(ins);
  return Submit(&call, options.async, options.timeout, options.stream);
}

Work Group::AllToAll(ConstTensorView in, TensorView out, const CallOptions& options) {
  TANDEM_REFUSE_UNLESS(OpKind::kAllToAll, CheckPair("in", in, "out", out));
  TANDEM_REFUSE_UNLESS(OpKind::kAllToAll, CheckSameCount("in", in, "out", out));
  if (in.count % world_size() != 0) {
    TANDEM_REFUSE_UNLESS(OpKind::kAllToAll,
                         absl::InvalidArgumentError(absl::StrCat(
                             "in has ", in.count, " elements, which ", world_size(),
                             " ranks cannot share evenly; give one tensor for each rank instead")));
  }
  TANDEM_REFUSE_UNLESS(OpKind::kAllToAll, CheckApart("in", in, "out", out, nullptr));
  Call call(OpKind::kAllToAll, in.dtype, in.device);
  call.SliceIns(in, world_size());
  call.SliceOuts(out, world_size());
  return Submit(&call, options.async, options.timeout, options.stream);
}

Work Group::AllToAll(absl::Span<const ConstTensorView> ins, absl::Span<const TensorView> outs,
                     const CallOptions& options) {
  const ConstTensorView like = ins.empty() ? ConstTensorView() : ins[0];
  TANDEM_REFUSE_UNLESS(OpKind::kAllToAll, CheckList("ins", ins, world_size(), like));
  TANDEM_REFUSE_UNLESS(OpKind::kAllToAll, CheckList("outs", outs, world_size(), like));
  TANDEM_REFUSE_UNLESS(OpKind::kAllToAll, CheckSameCount("this rank's own of ins", ins[rank()],
                                                         "this rank's own of outs", outs[rank()]));
  for (const ConstTensorView& in : ins) {
    TANDEM_REFUSE_UNLESS(OpKind::kAllToAll, CheckOutputsApart(outs, in, /*own=*/-1));
  }
  Call call(OpKind::kAllToAll, like.dtype, like.device);
  call.SetIns(ins);
  call.SetOuts(outs);
  return Submit(&call, options.async, options.timeout, options.stream);
}

#undef TANDEM_REFUSE_UNLESS

Work Group::Barrier(const CallOptions& options) {
  // A barrier runs on the CPU if there is a backend for it, so that it waits for no stream.
  Device device;
  if (LaneOf(device) == nullptr) device.kind = Device::Kind::kCuda;
  Call call(OpKind::kBarrier, DType::kU8, device);
  return Submit(&call, options.async, options.timeout, options.stream);
}

}  // namespace tandem::collectives

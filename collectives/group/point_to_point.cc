// SPDX-License-Identifier: Apache-2.0
#include "base/status.h"
#include "collectives/group/group.h"
#include "collectives/group/validation.h"

namespace tandem::collectives {

absl::Status Group::CheckPointToPoint(OpKind kind, const TensorView& tensor, int peer) const {
  TANDEM_RETURN_IF_ERROR(CheckTensor("the tensor", tensor));
  return CheckPeer(peer, rank(), world_size(), /*any=*/kind == OpKind::kRecv);
}

Work Group::PointToPointCall(OpKind kind, TensorView tensor, int peer, const PointToPointOptions& options,
                             bool blocking) {
  if (const absl::Status valid = CheckPointToPoint(kind, tensor, peer); !valid.ok()) {
    return Work(Refuse(kind, valid));
  }
  Operation operation;
  operation.kind = kind;
  operation.dtype = tensor.dtype;
  operation.device = tensor.device;
  operation.root = peer;
  operation.tag = options.tag;
  operation.stream = options.stream;
  if (kind == OpKind::kSend) {
    operation.in = {tensor.data, tensor.count};
  } else {
    operation.out = {tensor.data, tensor.count};
  }
  absl::Status error;
  Lane* const lane = Prepare(&operation, options.timeout, &error);
  if (lane == nullptr) return Work(std::move(error));
  return blocking ? lane->RunPointToPoint(&operation) : lane->StartPointToPoint(&operation);
}

namespace {
// A send's tensor is only read.
TensorView Readable(const ConstTensorView& view) {
  return {const_cast<void*>(view.data), view.count, view.dtype, view.device};
}
}  // namespace

Work Group::Send(ConstTensorView tensor, int peer, const PointToPointOptions& options) {
  return PointToPointCall(OpKind::kSend, Readable(tensor), peer, options, /*blocking=*/true);
}

Work Group::Recv(TensorView tensor, int peer, const PointToPointOptions& options) {
  return PointToPointCall(OpKind::kRecv, tensor, peer, options, /*blocking=*/true);
}

Work Group::Isend(ConstTensorView tensor, int peer, const PointToPointOptions& options) {
  return PointToPointCall(OpKind::kSend, Readable(tensor), peer, options, /*blocking=*/false);
}

Work Group::Irecv(TensorView tensor, int peer, const PointToPointOptions& options) {
  return PointToPointCall(OpKind::kRecv, tensor, peer, options, /*blocking=*/false);
}

std::vector<Work> Group::BatchIsendIrecv(absl::Span<const PointToPoint> operations) {
  // Starts all operations or none: those that were started could wait forever for one that is refused.
  for (size_t i = 0; i < operations.size(); ++i) {
    const PointToPoint& one = operations[i];
    const OpKind kind = one.kind == PointToPoint::Kind::kSend ? OpKind::kSend : OpKind::kRecv;
    absl::Status valid = CheckPointToPoint(kind, one.tensor, one.peer);
    if (valid.ok() && !(one.tensor.device == operations[0].tensor.device)) {
      valid = absl::InvalidArgumentError("the tensors of a batch must be on one device");
    }
    if (valid.ok()) continue;
    return std::vector<Work>(operations.size(),
                             Work(Refuse(kind, Annotate(valid, absl::StrCat("entry ", i, " of a batch")))));
  }
  std::vector<Work> works(operations.size());
  const bool on_cpu = operations.empty() || operations[0].tensor.device.kind == Device::Kind::kCpu;
  if (!on_cpu) {
    std::vector<Operation> batch;
    Lane* lane = nullptr;
    for (const PointToPoint& one : operations) {
      Operation operation;
      operation.kind = one.kind == PointToPoint::Kind::kSend ? OpKind::kSend : OpKind::kRecv;
      operation.dtype = one.tensor.dtype;
      operation.device = one.tensor.device;
      operation.root = one.peer;
      operation.tag = one.tag;
      operation.stream = one.stream;
      operation.in = {one.tensor.data, one.kind == PointToPoint::Kind::kSend ? one.tensor.count : 0};
      operation.out = {one.tensor.data, one.kind == PointToPoint::Kind::kRecv ? one.tensor.count : 0};
      absl::Status error;
      lane = Prepare(&operation, absl::ZeroDuration(), &error);
      if (lane == nullptr) return std::vector<Work>(operations.size(), Work(error));
      batch.push_back(operation);
    }
    return lane->EnqueueBatch(absl::MakeSpan(batch));
  }
  // None of these calls blocks. Receives come first, so that a message that arrives finds its receive.
  for (const PointToPoint::Kind kind : {PointToPoint::Kind::kRecv, PointToPoint::Kind::kSend}) {
    for (size_t i = 0; i < operations.size(); ++i) {
      if (operations[i].kind != kind) continue;
      works[i] = PointToPointCall(kind == PointToPoint::Kind::kSend ? OpKind::kSend : OpKind::kRecv,
                                  operations[i].tensor, operations[i].peer, {.tag = operations[i].tag},
                                  /*blocking=*/false);
    }
  }
  return works;
}

}  // namespace tandem::collectives

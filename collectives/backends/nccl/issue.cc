// SPDX-License-Identifier: Apache-2.0
#include "collectives/backends/nccl/issue.h"

#include <algorithm>
#include <cstring>

#include "absl/cleanup/cleanup.h"
#include "absl/container/inlined_vector.h"
#include "absl/strings/str_cat.h"
#include "base/numeric/float16.h"
#include "collectives/reduce/reduce.h"
#include "collectives/shape.h"

namespace tandem::collectives::nccl {
namespace {

Type TypeOf(DType dtype) {
  switch (dtype) {
    case DType::kU8:
      return Type::kU8;
    case DType::kI8:
      return Type::kI8;
    case DType::kI32:
      return Type::kI32;
    case DType::kI64:
      return Type::kI64;
    case DType::kF16:
      return Type::kF16;
    case DType::kBF16:
      return Type::kBF16;
    case DType::kF32:
      return Type::kF32;
    case DType::kF64:
      break;
  }
  return Type::kF64;
}

RedOp RedOpOf(ReduceOp op) {
  switch (op) {
    case ReduceOp::kProduct:
      return RedOp::kProduct;
    case ReduceOp::kMin:
      return RedOp::kMin;
    case ReduceOp::kMax:
      return RedOp::kMax;
    case ReduceOp::kAvg:
      return RedOp::kAvg;
    default:
      return RedOp::kSum;
  }
}

// The factor as one element of the dtype.
struct Factor {
  Factor(double factor, DType dtype) {
    if (dtype == DType::kF64) {
      std::memcpy(bytes, &factor, sizeof(factor));
    } else if (dtype == DType::kF32) {
      const float value = static_cast<float>(factor);
      std::memcpy(bytes, &value, sizeof(value));
    } else {
      const float value = static_cast<float>(factor);
      const uint16_t bits = dtype == DType::kF16 ? Float16(value).bits : BFloat16(value).bits;
      std::memcpy(bytes, &bits, sizeof(bits));
    }
  }
  alignas(8) char bytes[8];
};

bool NeedsFactor(const Operation& o) { return Reduces(o.kind) && o.reduce == ReduceOp::kPremulSum; }

}  // namespace

absl::Status CheckSupported(const Operation& o) {
  absl::Status status;
  if (o.device.kind != Device::Kind::kCuda) {
    status = absl::UnimplementedError("memory of another device than a GPU");
  } else if (SizeOf(o.dtype) == 0) {
    status = absl::UnimplementedError(absl::StrCat("elements of ", Name(o.dtype)));
  } else if (Reduces(o.kind)) {
    status = SupportsReduction(o.reduce, o.dtype);
    const bool bitwise =
        o.reduce == ReduceOp::kBitAnd || o.reduce == ReduceOp::kBitOr || o.reduce == ReduceOp::kBitXor;
    if (status.ok() && (bitwise || (o.reduce == ReduceOp::kAvg && !IsFloatingPoint(o.dtype)))) {
      status = absl::UnimplementedError(absl::StrCat("NCCL has no ", Name(o.reduce), " of ", Name(o.dtype)));
    }
  } else if (IsPointToPoint(o.kind) && o.tag != 0) {
    status = absl::UnimplementedError(absl::StrCat("tag ", o.tag, ": NCCL's messages have no tags"));
  } else if (o.kind == OpKind::kRecv && o.root == kAnySource) {
    status = absl::UnimplementedError("NCCL receives from a named rank only");
  }
  return status.ok()
             ? status
             : absl::UnimplementedError(absl::StrCat("backend nccl, ", Name(o.kind), ": ", status.message()));
}

Result Issuer::Issue(absl::Span<const Operation> operations, int* cuda_error) {
  absl::InlinedVector<RedOp, 4> ops, made;
  // NCCL copies the factor of a premul_sum when the operation is issued.
  const absl::Cleanup destroy = [&] {
    for (const RedOp op : made) nccl->RedOpDestroy(op, comm);
  };
  Result result = Result::kSuccess;
  for (const Operation& o : operations) {
    ops.push_back(RedOpOf(o.reduce));
    if (NeedsFactor(o)) {
      Factor factor(o.factor, o.dtype);
      result = nccl->RedOpCreatePreMulSum(&ops.back(), factor.bytes, TypeOf(o.dtype), comm);
      // The communicator is ready, so that kInProgress is no state to wait in: no operator was made.
      if (result == Result::kInProgress) return Result::kInternalError;
      if (result != Result::kSuccess) return result;
      made.push_back(ops.back());
    }
    result = CopyOwnParts(o, cuda_error);
    if (result != Result::kSuccess) return result;
  }
  result = nccl->GroupStart();
  if (result != Result::kSuccess) return result;
  Result failed = Result::kSuccess;
  for (size_t i = 0; i < operations.size(); ++i) {
    result = IssueOne(operations[i], ops[i]);
    if (result == Result::kSuccess || result == Result::kInProgress) continue;
    failed = result;
    break;
  }
  result = nccl->GroupEnd();  // even after an error: the group belongs to this thread
  return failed == Result::kSuccess ? result : failed;
}

Result Issuer::CopyOwnParts(const Operation& o, int* cuda_error) {
  const void* from = nullptr;
  Part to;
  if (o.kind == OpKind::kAllToAll) {
    from = o.ins[rank].data, to = o.outs[rank];
  } else if (o.kind == OpKind::kGather && o.root == rank) {
    from = o.in.data, to = o.outs[rank];
  } else if (o.kind == OpKind::kScatter && o.root == rank) {
    from = o.ins[rank].data, to = o.out;
  }
  if (to.count == 0 || from == to.data) return Result::kSuccess;
  *cuda_error = cuda->MemcpyAsync(to.data, from, to.count * SizeOf(o.dtype), stream);
  return *cuda_error == cuda::kCudaSuccess ? Result::kSuccess : Result::kUnhandledCudaError;
}

Result Issuer::IssueOne(const Operation& o, RedOp op) {
  const Type type = TypeOf(o.dtype);
  Result result = Result::kSuccess;
  // The first error ends a loop; kInProgress does not.
  auto call = [&](Result next) {
    if (result == Result::kSuccess || result == Result::kInProgress) result = next;
  };
  auto send = [&](const ConstPart& part, int peer) {
    if (part.count > 0) call(nccl->Send(part.data, part.count, type, peer, comm, stream));
  };
  auto recv = [&](const Part& part, int peer) {
    if (part.count > 0) call(nccl->Recv(part.data, part.count, type, peer, comm, stream));
  };
  switch (o.kind) {
    case OpKind::kAllReduce:
      if (o.in.count > 0) call(nccl->AllReduce(o.in.data, o.out.data, o.in.count, type, op, comm, stream));
      break;
    case OpKind::kReduce:
      if (o.in.count > 0)
        call(nccl->Reduce(o.in.data, o.out.data, o.in.count, type, op, o.root, comm, stream));
      break;
    case OpKind::kBroadcast: {
      const bool is_root = o.root == rank;
      const void* in = is_root && o.in.count > 0 ? o.in.data : o.out.data;
      void* out = o.out.count > 0 ? o.out.data : const_cast<void*>(in);  // in place: only read
      const size_t n = is_root ? std::max(o.in.count, o.out.count) : o.out.count;
      if (n > 0) call(nccl->Broadcast(in, out, n, type, o.root, comm, stream));
      break;
    }
    case OpKind::kAllGather:
      if (o.even) {
        if (o.in.count > 0) call(nccl->AllGather(o.in.data, o.outs[0].data, o.in.count, type, comm, stream));
        break;
      }
      for (int from = 0; from < world_size; ++from) {
        const Part& part = o.outs[from];
        if (part.count == 0) continue;
        call(nccl->Broadcast(from == rank ? o.in.data : part.data, part.data, part.count, type, from, comm,
                             stream));
      }
      break;
    case OpKind::kReduceScatter:
      if (o.even) {
        if (o.out.count > 0) {
          call(nccl->ReduceScatter(o.ins[0].data, o.out.data, o.out.count, type, op, comm, stream));
        }
        break;
      }
      for (int to = 0; to < world_size; ++to) {
        const ConstPart& part = o.ins[to];
        if (part.count == 0) continue;
        call(nccl->Reduce(part.data, to == rank ? o.out.data : nullptr, part.count, type, op, to, comm,
                          stream));
      }
      break;
    case OpKind::kAllToAll:
      for (int peer = 0; peer < world_size; ++peer) {
        if (peer == rank) continue;
        send(o.ins[peer], peer);
        recv(o.outs[peer], peer);
      }
      break;
    case OpKind::kGather:
      if (o.root != rank) {
        send(o.in, o.root);
        break;
      }
      for (int from = 0; from < world_size; ++from) {
        if (from != rank) recv(o.outs[from], from);
      }
      break;
    case OpKind::kScatter:
      if (o.root != rank) {
        recv(o.out, o.root);
        break;
      }
      for (int to = 0; to < world_size; ++to) {
        if (to != rank) send(o.ins[to], to);
      }
      break;
    case OpKind::kBarrier:
      call(nccl->AllReduce(scratch, scratch, 1, Type::kI32, RedOp::kSum, comm, stream));
      break;
    case OpKind::kSend:
      send(o.in, o.root);
      break;
    case OpKind::kRecv:
      recv(o.out, o.root);
      break;
    case OpKind::kLeave:
      break;
  }
  return result;
}

}  // namespace tandem::collectives::nccl

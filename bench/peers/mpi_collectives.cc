// SPDX-License-Identifier: Apache-2.0
// MPI's collectives, timed as `tandem bench` times Tandem's. The same source is linked with Open MPI and with
// MPICH:
//
//   mpirun -n 2 bench/peers/mpi_collectives_openmpi allreduce --sizes 8,64K --json

#include <mpi.h>

#include <cstdio>
#include <optional>
#include <string>

#include "bench/peers/peer_flags.h"

namespace tandem::bench {
namespace {

MPI_Datatype DatatypeOf(DType dtype) {
  switch (dtype) {
    case DType::kU8:
      return MPI_UINT8_T;
    case DType::kI8:
      return MPI_INT8_T;
    case DType::kI32:
      return MPI_INT32_T;
    case DType::kI64:
      return MPI_INT64_T;
    case DType::kF32:
      return MPI_FLOAT;
    case DType::kF64:
      return MPI_DOUBLE;
    default:
      return MPI_DATATYPE_NULL;  // MPI has no two-byte floating point
  }
}

MPI_Op OpOf(const std::string& name) {
  if (name == "sum") return MPI_SUM;
  if (name == "product") return MPI_PROD;
  if (name == "min") return MPI_MIN;
  if (name == "max") return MPI_MAX;
  return MPI_OP_NULL;
}

// Errors inside MPI end the program, which is MPI's default.
class MpiTarget : public BenchTarget {
 public:
  explicit MpiTarget(MPI_Op reduce) : reduce_(reduce) {
    MPI_Comm_rank(MPI_COMM_WORLD, &rank_);
    MPI_Comm_size(MPI_COMM_WORLD, &ranks_);
  }
  int rank() const override { return rank_; }
  int ranks() const { return ranks_; }
  std::string backend() const override { return TANDEM_PEER_NAME; }

  absl::Status Prepare(const BenchCase& c, const BufferSets& buffers) override {
    case_ = c;
    buffers_ = &buffers;
    type_ = DatatypeOf(c.dtype);
    if (type_ == MPI_DATATYPE_NULL) return absl::UnimplementedError("MPI has no such dtype");
    if (Reduces(c.op) && reduce_ == MPI_OP_NULL) return absl::UnimplementedError("MPI has no such reduction");
    return absl::OkStatus();
  }

  absl::Status Run(uint64_t first, uint64_t count) override {
    const int all = static_cast<int>(case_.count()), part = static_cast<int>(case_.part());
    const bool in_place = case_.in_place;
    const int right = (rank_ + 1) % ranks_, left = (rank_ + ranks_ - 1) % ranks_;
    for (uint64_t i = first; i < first + count; ++i) {
      void* const in = buffers_->in(i);
      void* const out = buffers_->out(i);
      const void* const from = in_place ? MPI_IN_PLACE : in;
      switch (case_.op) {
        case BenchOp::kAllReduce:
          MPI_Allreduce(from, out, all, type_, reduce_, MPI_COMM_WORLD);
          break;
        case BenchOp::kBroadcast:
          MPI_Bcast(out, all, type_, 0, MPI_COMM_WORLD);
          break;
        case BenchOp::kAllGather:
          MPI_Allgather(from, part, type_, out, part, type_, MPI_COMM_WORLD);
          break;
        case BenchOp::kReduceScatter:  // in place, MPI stores the result at the beginning of the input
          MPI_Reduce_scatter_block(from, in_place ? in : out, part, type_, reduce_, MPI_COMM_WORLD);
          break;
        case BenchOp::kAllToAll:
          MPI_Alltoall(in, part, type_, out, part, type_, MPI_COMM_WORLD);
          break;
        case BenchOp::kBarrier:
          MPI_Barrier(MPI_COMM_WORLD);
          break;
        case BenchOp::kSendRecv:
          MPI_Sendrecv(in, all, type_, right, 0, out, all, type_, left, 0, MPI_COMM_WORLD, MPI_STATUS_IGNORE);
          break;
      }
    }
    return absl::OkStatus();
  }

  absl::Status Barrier() override {
    MPI_Barrier(MPI_COMM_WORLD);
    return absl::OkStatus();
  }
  absl::Status MaxOverRanks(absl::Span<double> values) override {
    MPI_Allreduce(MPI_IN_PLACE, values.data(), static_cast<int>(values.size()), MPI_DOUBLE, MPI_MAX,
                  MPI_COMM_WORLD);
    return absl::OkStatus();
  }

 private:
  const MPI_Op reduce_;
  int rank_ = 0, ranks_ = 1;
  BenchCase case_;
  const BufferSets* buffers_ = nullptr;
  MPI_Datatype type_ = MPI_DATATYPE_NULL;
};

int Main(int argc, char** argv) {
  PeerFlags flags;
  if (const std::optional<int> code =
          ParsePeerFlags("Collectives of an MPI library, timed; run by mpirun", argc, argv, &flags)) {
    return *code;
  }
  MPI_Init(&argc, &argv);
  int code;
  {
    MpiTarget bench_target(OpOf(flags.bench.reduce));
    code = MeasurePeer(&bench_target, flags, bench_target.ranks());
  }
  MPI_Finalize();
  return code;
}

}  // namespace
}  // namespace tandem::bench

int main(int argc, char** argv) { return tandem::bench::Main(argc, argv); }

// SPDX-License-Identifier: Apache-2.0
#include "collectives/backends/mpi/collective.h"

#include <mpi.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "absl/time/time.h"
#include "base/clock.h"
#include "base/status.h"
#include "collectives/backends/mpi/packing.h"
#include "collectives/backends/mpi/reduction.h"
#include "collectives/backends/mpi/round.h"
#include "collectives/shape.h"

namespace tandem::collectives::mpi {
namespace {

// A rank that has waited for so long announces that it has come, so that the absent ranks can be named.
constexpr absl::Duration kAnnounceAfter = absl::Milliseconds(50);

MPI_Request* AsRequest(void* request) { return static_cast<MPI_Request*>(request); }

bool HasParts(OpKind kind) {
  return kind == OpKind::kAllGather || kind == OpKind::kGather || kind == OpKind::kScatter ||
         kind == OpKind::kReduceScatter || kind == OpKind::kAllToAll;
}

// Returns true if counts of an uneven operation are known only to pairs of ranks.
bool NeedsPairs(const Operation& o) {
  return !o.even && (o.kind == OpKind::kGather || o.kind == OpKind::kScatter || o.kind == OpKind::kAllToAll);
}

uint64_t LargestPart(const Operation& o) {
  if (o.kind == OpKind::kBarrier || o.kind == OpKind::kLeave) return 0;
  uint64_t largest = std::max(o.in.count, o.out.count);
  for (const ConstPart& part : o.ins) largest = std::max<uint64_t>(largest, part.count);
  for (const Part& part : o.outs) largest = std::max<uint64_t>(largest, part.count);
  return largest;
}

}  // namespace

struct Collectives::Memory {
  std::unique_ptr<char[]> send, recv;
  size_t capacity = 0;
  // Arguments of the v-variants, in MPI's elements.
  std::vector<int> send_counts, send_at, recv_counts, recv_at;
};

struct Collectives::Head {
  Fingerprint fingerprint;
  uint64_t largest_part;
};

struct Collectives::Pair {
  uint64_t sends, expects;  // elements: to that rank, from that rank
};

struct Collectives::Verdict {
  int64_t from = -1;  // the first rank that sends what this one does not expect
  uint64_t sends = 0, expects = 0;
};

std::shared_ptr<Collectives::Memory> Collectives::TakeMemory(int slot, size_t bytes) {
  std::shared_ptr<Memory>& memory = memory_[slot];
  if (memory == nullptr) memory = std::make_shared<Memory>();
  if (memory->capacity < bytes) {
    memory->send.reset(new char[bytes]);
    memory->recv.reset(new char[bytes]);
    memory->capacity = bytes;
  }
  return memory;
}

absl::Status Collectives::Run(const Operation& o, absl::Time deadline) {
  ++number_;
  TANDEM_ASSIGN_OR_RETURN(const uint64_t largest, Agree(o, deadline));
  if (largest == 0) return absl::OkStatus();
  const size_t width = SizeOf(TravelType(o)), parts = HasParts(o.kind) ? world_size_ : 1;
  const uint64_t length = std::min<uint64_t>(largest, std::max<size_t>(1, kSegmentBytes / width / parts));
  Segment earlier{0, 0};
  std::shared_ptr<Round> round;
  int slot = 0;
  for (uint64_t begin = 0; begin < largest || round != nullptr; begin += length) {
    std::shared_ptr<Round> next;
    const Segment segment{begin, length};
    if (begin < largest) next = Start(o, segment, TakeMemory(slot, length * width * parts));
    if (round != nullptr) {
      if (absl::Status status = round->Wait(deadline); !status.ok()) return Explain(o, status, true);
      Finish(o, earlier, *memory_[1 - slot]);
    }
    round = std::move(next);
    earlier = segment;
    slot = 1 - slot;
  }
  return absl::OkStatus();
}

absl::StatusOr<uint64_t> Collectives::Agree(const Operation& o, absl::Time deadline) {
  auto heads = std::make_shared<std::vector<Head>>(world_size_);
  Head& mine = (*heads)[rank_];
  mine.fingerprint = FingerprintOf(o);
  mine.largest_part = LargestPart(o);
  const int comm = communicators_.operations;
  auto round =
      StartRound(engine_, monitor_, "MPI_Iallgather", heads, [comm, all = heads.get()](void* request) {
        return MPI_Iallgather(MPI_IN_PLACE, 0, MPI_BYTE, all->data(), sizeof(Head), MPI_BYTE,
                              MPI_Comm_f2c(comm), AsRequest(request));
      });
  const absl::Time now = MonotonicNow();
  const absl::Time announce = now + std::min(kAnnounceAfter, (deadline - now) / 4);
  absl::Status status = round->Wait(announce);
  if (absl::IsDeadlineExceeded(status) && !monitor_->broken()) {
    Note note;
    note.number = number_;
    SendNote(engine_, communicators_, rank_, world_size_, note);
    status = round->Wait(deadline);
  }
  if (!status.ok()) return Explain(o, status, /*arrived=*/false);
  uint64_t largest = 0;
  for (int rank = 0; rank < world_size_; ++rank) {
    const Head& head = (*heads)[rank];
    if (head.fingerprint.kind == OpKind::kLeave && o.kind != OpKind::kLeave) {
      return absl::UnavailableError(
          absl::StrCat(Describe(o), " on group '", group_, "': rank ", rank, " has left the group"));
    }
    largest = std::max(largest, head.largest_part);
  }
  for (int rank = 1; rank < world_size_; ++rank) {
    const Fingerprint &first = (*heads)[0].fingerprint, &other = (*heads)[rank].fingerprint;
    if (o.kind != OpKind::kLeave && !collectives::Agree(first, other)) {
      return absl::InvalidArgumentError(Disagreement(group_, 0, first, rank, other));
    }
  }
  if (NeedsPairs(o)) TANDEM_RETURN_IF_ERROR(AgreeOnPairs(o, deadline));
  return largest;
}

absl::Status Collectives::AgreeOnPairs(const Operation& o, absl::Time deadline) {
  // [0, P): the counts from this rank for each; [P, 2P): the counts of each for this rank.
  auto pairs = std::make_shared<std::vector<Pair>>(2 * world_size_);
  for (int rank = 0; rank < world_size_; ++rank) {
    (*pairs)[rank] = {CountTo(o, rank_, rank), CountFrom(o, rank_, rank)};
  }
  const int comm = communicators_.operations, world_size = world_size_;
  absl::Status status =
      StartRound(engine_, monitor_, "MPI_Ialltoall", pairs, [=, all = pairs.get()](void* request) {
        return MPI_Ialltoall(all->data(), sizeof(Pair), MPI_BYTE, all->data() + world_size, sizeof(Pair),
                             MPI_BYTE, MPI_Comm_f2c(comm), AsRequest(request));
      })->Wait(deadline);
  if (!status.ok()) return Explain(o, status, /*arrived=*/true);
  auto verdicts = std::make_shared<std::vector<Verdict>>(world_size_);
  for (int rank = world_size_ - 1; rank >= 0; --rank) {
    const uint64_t sends = (*pairs)[world_size_ + rank].sends, expects = (*pairs)[rank].expects;
    if (sends != expects) (*verdicts)[rank_] = {rank, sends, expects};
  }
  status =
      StartRound(engine_, monitor_, "MPI_Iallgather", verdicts, [=, all = verdicts.get()](void* request) {
        return MPI_Iallgather(MPI_IN_PLACE, 0, MPI_BYTE, all->data(), sizeof(Verdict), MPI_BYTE,
                              MPI_Comm_f2c(comm), AsRequest(request));
      })->Wait(deadline);
  if (!status.ok()) return Explain(o, status, /*arrived=*/true);
  for (int rank = 0; rank < world_size_; ++rank) {
    const Verdict& verdict = (*verdicts)[rank];
    if (verdict.from < 0) continue;
    return absl::InvalidArgumentError(absl::StrCat("ranks of group '", group_, "' disagree in ", Describe(o),
                                                   ": rank ", verdict.from, " sends ", verdict.sends,
                                                   " elements to rank ", rank, ", which expects ",
                                                   verdict.expects, "; both must give the same count"));
  }
  return absl::OkStatus();
}

absl::Status Collectives::Explain(const Operation& o, const absl::Status& status, bool arrived) {
  if (monitor_->broken()) return monitor_->error();
  const std::string here = absl::StrCat(Describe(o), " on group '", group_, "'");
  if (!absl::IsDeadlineExceeded(status)) return Annotate(status, here);
  const std::string within = absl::StrCat(" within ", absl::FormatDuration(o.timeout));
  const std::vector<int> absent = arrived ? std::vector<int>() : monitor_->Absent(number_, rank_);
  if (absent.empty()) return absl::DeadlineExceededError(absl::StrCat(here, ": not finished", within));
  return absl::DeadlineExceededError(absl::StrCat(here, ": ", absent.size() == 1 ? "rank " : "ranks ",
                                                  absl::StrJoin(absent, ", "), " did not arrive", within));
}

namespace {

// Returns how many of `count` elements lie in a segment.
uint64_t Within(uint64_t count, uint64_t begin, uint64_t length) {
  return count <= begin ? 0 : std::min(length, count - begin);
}

// Computes the place of each of `parts` in memory, in units of `unit` for MPI.
template <typename PartType>
void LayOut(absl::Span<const PartType> parts, uint64_t begin, uint64_t length, size_t unit,
            std::vector<int>* counts, std::vector<int>* at) {
  counts->clear();
  at->clear();
  int next = 0;
  for (const PartType& part : parts) {
    at->push_back(next);
    counts->push_back(static_cast<int>(Within(part.count, begin, length) * unit));
    next += counts->back();
  }
}

template <typename Address>
Address* At(Address* data, uint64_t offset_bytes) {
  if (data == nullptr) return nullptr;
  using Byte = std::conditional_t<std::is_const_v<Address>, const char, char>;
  return static_cast<Byte*>(data) + offset_bytes;
}

}  // namespace

std::shared_ptr<Round> Collectives::Start(const Operation& o, Segment segment,
                                          std::shared_ptr<Memory> memory) {
  Memory& m = *memory;
  const uint64_t begin = segment.begin, length = segment.length;
  const uint64_t offset = begin * SizeOf(o.dtype);
  // Data that is not reduced is sent as bytes.
  const size_t width = SizeOf(TravelType(o)), unit = Reduces(o.kind) ? 1 : width, scale = width / unit;
  const bool is_root = o.root == rank_;
  char* const send = m.send.get();
  char* const recv = m.recv.get();
  auto pack = [&](const void* data, size_t n, char* to) { Pack(o, At(data, offset), n, to); };
  auto pack_parts = [&](int except) {
    LayOut(o.ins, begin, length, unit, &m.send_counts, &m.send_at);
    for (int rank = 0; rank < world_size_; ++rank) {
      if (rank == except) continue;
      pack(o.ins[rank].data, m.send_counts[rank] / unit, send + m.send_at[rank] * scale);
    }
  };
  const ConstPart source =
      o.kind == OpKind::kBroadcast && o.in.count == 0 ? ConstPart{o.out.data, o.out.count} : o.in;
  const int own_in = static_cast<int>(Within(source.count, begin, length) * unit);
  const int own_out = static_cast<int>(Within(o.out.count, begin, length) * unit);
  switch (o.kind) {
    case OpKind::kAllReduce:
    case OpKind::kReduce:
      pack(o.in.data, own_in, recv);
      break;
    case OpKind::kBroadcast:
      if (is_root) pack(source.data, own_in / unit, recv);
      break;
    case OpKind::kAllGather:
      LayOut(o.outs, begin, length, unit, &m.recv_counts, &m.recv_at);
      pack(o.in.data, own_in / unit, recv + m.recv_at[rank_]);
      break;
    case OpKind::kGather:
      if (is_root) LayOut(o.outs, begin, length, unit, &m.recv_counts, &m.recv_at);
      pack(o.in.data, own_in / unit, is_root ? recv + m.recv_at[rank_] : send);
      break;
    case OpKind::kScatter:
      if (is_root) pack_parts(rank_);
      break;
    case OpKind::kReduceScatter:
      pack_parts(-1);
      break;
    case OpKind::kAllToAll:
      pack_parts(-1);
      LayOut(o.outs, begin, length, unit, &m.recv_counts, &m.recv_at);
      break;
    default:
      break;
  }
  const int root = o.root, count_in = own_in, count_out = own_out, handle = communicators_.operations;
  const OpKind kind = o.kind;
  const ReduceOp reduce = o.reduce;
  const DType travel = TravelType(o);
  return StartRound(engine_, monitor_, Name(kind), memory, [=, m = memory.get()](void* opaque) -> int {
    const MPI_Comm comm = MPI_Comm_f2c(handle);
    MPI_Request* const request = AsRequest(opaque);
    MPI_Datatype type = MPI_BYTE;
    MPI_Op op = MPI_OP_NULL;
    if (Reduces(kind)) {
      const MpiReduction names = ReductionOf(reduce, travel);
      type = MPI_Type_f2c(names.type);
      op = MPI_Op_f2c(names.op);
    }
    switch (kind) {
      case OpKind::kAllReduce:
        return MPI_Iallreduce(MPI_IN_PLACE, recv, count_in, type, op, comm, request);
      case OpKind::kReduce:
        return MPI_Ireduce(is_root ? MPI_IN_PLACE : recv, is_root ? recv : nullptr, count_in, type, op, root,
                           comm, request);
      case OpKind::kBroadcast:
        return MPI_Ibcast(recv, is_root ? count_in : count_out, type, root, comm, request);
      case OpKind::kAllGather:
        return MPI_Iallgatherv(MPI_IN_PLACE, 0, type, recv, m->recv_counts.data(), m->recv_at.data(), type,
                               comm, request);
      case OpKind::kGather:
        return is_root
                   ? MPI_Igatherv(MPI_IN_PLACE, 0, type, recv, m->recv_counts.data(), m->recv_at.data(), type,
                                  root, comm, request)
                   : MPI_Igatherv(send, count_in, type, nullptr, nullptr, nullptr, type, root, comm, request);
      case OpKind::kScatter:
        return is_root ? MPI_Iscatterv(send, m->send_counts.data(), m->send_at.data(), type, MPI_IN_PLACE, 0,
                                       type, root, comm, request)
                       : MPI_Iscatterv(nullptr, nullptr, nullptr, type, recv, count_out, type, root, comm,
                                       request);
      case OpKind::kReduceScatter:
        return MPI_Ireduce_scatter(send, recv, m->send_counts.data(), type, op, comm, request);
      case OpKind::kAllToAll:
        return MPI_Ialltoallv(send, m->send_counts.data(), m->send_at.data(), type, recv,
                              m->recv_counts.data(), m->recv_at.data(), type, comm, request);
      default:
        return MPI_ERR_OTHER;
    }
  });
}

void Collectives::Finish(const Operation& o, Segment segment, const Memory& m) {
  const uint64_t begin = segment.begin, length = segment.length;
  const uint64_t offset = begin * SizeOf(o.dtype);
  const bool is_root = o.root == rank_;
  char* const recv = m.recv.get();
  auto unpack = [&](char* from, uint64_t count, void* to) {
    Unpack(o, from, Within(count, begin, length), world_size_, At(to, offset));
  };
  switch (o.kind) {
    case OpKind::kReduce:
      if (is_root) unpack(recv, o.out.count, o.out.data);
      break;
    case OpKind::kBroadcast:
      // The root's own elements are in place, or `out` is empty.
      if (!is_root) unpack(recv, o.out.count, o.out.data);
      break;
    case OpKind::kScatter:
      if (!is_root) {
        unpack(recv, o.out.count, o.out.data);
      } else if (o.ins[rank_].data != o.out.data && Within(o.out.count, begin, length) > 0) {
        std::memcpy(At(o.out.data, offset), At(o.ins[rank_].data, offset),
                    Within(o.out.count, begin, length) * SizeOf(o.dtype));
      }
      break;
    case OpKind::kGather:
      if (!is_root) break;
      [[fallthrough]];
    case OpKind::kAllGather:
    case OpKind::kAllToAll:
      for (int rank = 0; rank < world_size_; ++rank) {
        const bool in_place = rank == rank_ && o.kind != OpKind::kAllToAll && o.in.data == o.outs[rank].data;
        if (!in_place) unpack(recv + m.recv_at[rank], o.outs[rank].count, o.outs[rank].data);
      }
      break;
    default:
      unpack(recv, o.out.count, o.out.data);
  }
}

}  // namespace tandem::collectives::mpi

// SPDX-License-Identifier: Apache-2.0
// Many tensors in one call. Small ones of one dtype share one operation over a scratch buffer. Large ones,
// for which a copy would cost more than a round, are sent separately. The choice depends on counts and dtypes
// alone, so that all ranks make the same one.

#include <array>

#include "absl/strings/str_cat.h"
#include "base/status.h"
#include "collectives/group/group.h"
#include "collectives/group/validation.h"

namespace tandem::collectives {
namespace {

constexpr size_t kSmallBytes = 64 << 10;   // of one tensor, of one rank
constexpr size_t kScratchBytes = 4 << 20;  // of one operation; more small tensors need several

// Returns the indices of the tensors of each operation, in the order of the calls. Tensor i adds `bytes(i)`.
template <typename Views, typename Bytes>
std::vector<std::vector<size_t>> Plan(const Views& views, const Bytes& bytes) {
  std::vector<std::vector<size_t>> plan;
  constexpr size_t kNone = ~size_t{0};
  std::array<size_t, kNumDTypes> open;  // the operation that still takes small tensors of a dtype
  std::array<size_t, kNumDTypes> held{};
  open.fill(kNone);
  for (size_t i = 0; i < views.size(); ++i) {
    const size_t dtype = static_cast<size_t>(views[i].dtype), size = bytes(i);
    // Scratch is in the CPU's memory.
    if (size > kSmallBytes || views[i].device.kind != Device::Kind::kCpu) {
      plan.push_back({i});
      continue;
    }
    if (open[dtype] == kNone || held[dtype] + size > kScratchBytes) {
      open[dtype] = plan.size();
      held[dtype] = 0;
      plan.emplace_back();
    }
    plan[open[dtype]].push_back(i);
    held[dtype] += size;
  }
  return plan;
}

void* Scratch(size_t bytes, Task* task) {
  task->scratch.push_back(std::make_unique<char[]>(bytes));
  return task->scratch.back().get();
}

char* At(void* base, size_t offset) { return static_cast<char*>(base) + offset; }

std::string Nth(absl::string_view list, size_t i) { return absl::StrCat(list, "[", i, "]"); }

}  // namespace

Work Group::AllReduceCoalesced(absl::Span<const TensorView> tensors, const AllReduceOptions& options) {
  absl::Status valid;
  for (size_t i = 0; valid.ok() && i < tensors.size(); ++i)
    valid = CheckTensor(Nth("tensors", i), tensors[i]);
  if (valid.ok()) valid = CheckDistinct("tensors", tensors);
  if (!valid.ok()) return Work(Refuse(OpKind::kAllReduce, valid));
  auto task = std::make_unique<Task>();
  for (const std::vector<size_t>& some : Plan(tensors, [&](size_t i) { return tensors[i].bytes(); })) {
    TensorView all = tensors[some[0]];
    if (some.size() > 1) {
      all.count = 0;
      for (size_t i : some) all.count += tensors[i].count;
      all.data = Scratch(all.bytes(), task.get());
      size_t offset = 0;
      for (size_t i : some) {
        task->before.push_back({At(all.data, offset), tensors[i].data, tensors[i].bytes()});
        task->after.push_back({tensors[i].data, At(all.data, offset), tensors[i].bytes()});
        offset += tensors[i].bytes();
      }
    }
    Operation& operation = task->calls.emplace_back(OpKind::kAllReduce, all.dtype, all.device).operation;
    operation.reduce = options.op;
    operation.factor = options.factor;
    operation.in = {all.data, all.count};
    operation.out = {all.data, all.count};
  }
  return SubmitTask(std::move(task), options.async, options.timeout, options.stream);
}

Work Group::BroadcastCoalesced(absl::Span<const TensorView> tensors, const RootOptions& options) {
  absl::Status valid = CheckRoot(options.root, world_size());
  for (size_t i = 0; valid.ok() && i < tensors.size(); ++i)
    valid = CheckTensor(Nth("tensors", i), tensors[i]);
  if (valid.ok()) valid = CheckDistinct("tensors", tensors);
  if (!valid.ok()) return Work(Refuse(OpKind::kBroadcast, valid));
  const bool is_root = rank() == options.root;
  auto task = std::make_unique<Task>();
  for (const std::vector<size_t>& some : Plan(tensors, [&](size_t i) { return tensors[i].bytes(); })) {
    TensorView all = tensors[some[0]];
    if (some.size() > 1) {
      all.count = 0;
      for (size_t i : some) all.count += tensors[i].count;
      all.data = Scratch(all.bytes(), task.get());
      size_t offset = 0;
      for (size_t i : some) {
        Task::Copy copy{At(all.data, offset), tensors[i].data, tensors[i].bytes()};
        if (is_root) {
          task->before.push_back(copy);
        } else {
          task->after.push_back({tensors[i].data, copy.to, copy.bytes});
        }
        offset += copy.bytes;
      }
    }
    Operation& operation = task->calls.emplace_back(OpKind::kBroadcast, all.dtype, all.device).operation;
    operation.root = options.root;
    if (is_root) operation.in = {all.data, all.count};
    operation.out = {all.data, all.count};
  }
  return SubmitTask(std::move(task), options.async, options.timeout, options.stream);
}

Work Group::AllGatherCoalesced(absl::Span<const ConstTensorView> ins, absl::Span<const TensorView> outs,
                               const CallOptions& options) {
  const size_t ranks = static_cast<size_t>(world_size());
  absl::Status valid;
  if (ins.size() != outs.size()) {
    valid = absl::InvalidArgumentError(
        absl::StrCat(ins.size(), " ins and ", outs.size(), " outs; give one out for each in"));
  }
  for (size_t i = 0; valid.ok() && i < ins.size(); ++i) {
    const std::string in = Nth("ins", i), out = Nth("outs", i);
    valid = CheckPair(in, ins[i], out, outs[i]);
    if (valid.ok()) valid = CheckMultiple(out, outs[i], in, ins[i], world_size());
    const char* own = static_cast<const char*>(outs[i].data) + rank() * ins[i].bytes();
    if (valid.ok()) valid = CheckApart(in, ins[i], out, outs[i], own);
  }
  if (!valid.ok()) return Work(Refuse(OpKind::kAllGather, valid));
  auto task = std::make_unique<Task>();
  for (const std::vector<size_t>& some : Plan(ins, [&](size_t i) { return ins[i].bytes(); })) {
    ConstTensorView in = ins[some[0]];
    TensorView out = outs[some[0]];
    if (some.size() > 1) {
      in.count = 0;
      for (size_t i : some) in.count += ins[i].count;
      out.count = in.count * ranks;
      void* packed = Scratch(in.bytes(), task.get());
      in.data = packed;
      out.data = Scratch(out.bytes(), task.get());
      size_t offset = 0;
      for (size_t i : some) {
        const size_t bytes = ins[i].bytes();
        task->before.push_back({At(packed, offset), ins[i].data, bytes});
        for (size_t r = 0; r < ranks; ++r) {
          task->after.push_back({At(outs[i].data, r * bytes), At(out.data, r * in.bytes() + offset), bytes});
        }
        offset += bytes;
      }
    }
    Call& call = task->calls.emplace_back(OpKind::kAllGather, in.dtype, in.device);
    call.operation.in = {in.data, in.count};
    call.SliceOuts(out, world_size());
  }
  return SubmitTask(std::move(task), options.async, options.timeout, options.stream);
}

Work Group::ReduceScatterCoalesced(absl::Span<const ConstTensorView> ins, absl::Span<const TensorView> outs,
                                   const ReduceScatterOptions& options) {
  const size_t ranks = static_cast<size_t>(world_size());
  absl::Status valid;
  if (ins.size() != outs.size()) {
    valid = absl::InvalidArgumentError(
        absl::StrCat(ins.size(), " ins and ", outs.size(), " outs; give one out for each in"));
  }
  for (size_t i = 0; valid.ok() && i < ins.size(); ++i) {
    const std::string in = Nth("ins", i), out = Nth("outs", i);
    valid = CheckPair(in, ins[i], out, outs[i]);
    if (valid.ok()) valid = CheckMultiple(in, ins[i], out, outs[i], world_size());
    const char* own = static_cast<const char*>(ins[i].data) + rank() * outs[i].bytes();
    if (valid.ok()) valid = CheckApart(out, outs[i], in, ins[i], own);
  }
  if (!valid.ok()) return Work(Refuse(OpKind::kReduceScatter, valid));
  auto task = std::make_unique<Task>();
  for (const std::vector<size_t>& some : Plan(outs, [&](size_t i) { return outs[i].bytes(); })) {
    ConstTensorView in = ins[some[0]];
    TensorView out = outs[some[0]];
    if (some.size() > 1) {
      out.count = 0;
      for (size_t i : some) out.count += outs[i].count;
      in.count = out.count * ranks;
      void* packed = Scratch(in.bytes(), task.get());
      in.data = packed;
      out.data = Scratch(out.bytes(), task.get());
      size_t offset = 0;
      for (size_t i : some) {
        const size_t bytes = outs[i].bytes();
        for (size_t r = 0; r < ranks; ++r) {
          task->before.push_back({At(packed, r * out.bytes() + offset),
                                  static_cast<const char*>(ins[i].data) + r * bytes, bytes});
        }
        task->after.push_back({outs[i].data, At(out.data, offset), bytes});
        offset += bytes;
      }
    }
    Call& call = task->calls.emplace_back(OpKind::kReduceScatter, in.dtype, in.device);
    call.operation.reduce = options.op;
    call.operation.factor = options.factor;
    call.operation.out = {out.data, out.count};
    call.SliceIns(in, world_size());
  }
  return SubmitTask(std::move(task), options.async, options.timeout, options.stream);
}

}  // namespace tandem::collectives

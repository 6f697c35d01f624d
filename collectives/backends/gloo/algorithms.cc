// SPDX-License-Identifier: Apache-2.0
#include "collectives/backends/gloo/algorithms.h"

#include <gloo/allgather.h>
#include <gloo/allgatherv.h>
#include <gloo/allreduce.h>
#include <gloo/alltoall.h>
#include <gloo/alltoallv.h>
#include <gloo/barrier.h>
#include <gloo/broadcast.h>
#include <gloo/context.h>
#include <gloo/gather.h>
#include <gloo/reduce.h>
#include <gloo/scatter.h>

#include <cstring>
#include <vector>

#include "absl/types/span.h"
#include "collectives/reduce/reduce.h"
#include "collectives/shape.h"

namespace tandem::collectives::gloo_library {
namespace {

using Context = std::shared_ptr<::gloo::Context>;

// Arrays up to this size are reduced by halving-doubling, which has fewer steps than the ring.
constexpr size_t kShortBytes = size_t{64} << 10;

// Gloo's functions have no const pointers; they do not write to inputs.
char* Bytes(const void* data) { return static_cast<char*>(const_cast<void*>(data)); }

bool Widens(const Operation& operation) {
  const ReduceOp op = operation.reduce;
  return (operation.dtype == DType::kF16 || operation.dtype == DType::kBF16) &&
         (op == ReduceOp::kSum || op == ReduceOp::kAvg || op == ReduceOp::kProduct ||
          op == ReduceOp::kPremulSum);
}

// The values of a reduction, in the dtype and the form in which Gloo reduces them.
class Reduction {
 public:
  // `out` is where the result goes, or nullptr on ranks that get none.
  Reduction(const Operation& operation, int world_size, void* out, Memory* memory)
      : op_(operation.reduce),
        dtype_(operation.dtype),
        count_(operation.in.count),
        world_size_(world_size),
        widens_(Widens(operation)),
        out_(out) {
    const size_t size = widens_ ? sizeof(float) : SizeOf(dtype_);
    values_ = widens_ || out == nullptr ? memory->out.Get(count_ * size) : static_cast<char*>(out);
    if (widens_) {
      WidenToF32(dtype_, operation.in.data, count_, reinterpret_cast<float*>(values_));
    } else if (op_ != ReduceOp::kPremulSum && values_ != operation.in.data) {
      std::memcpy(values_, operation.in.data, count_ * size);
    }
    if (op_ == ReduceOp::kPremulSum) {
      const void* source = widens_ ? values_ : operation.in.data;
      ReduceInRankOrder(ReduceOp::kPremulSum, dtype(), {source}, {operation.factor}, 1, count_, values_);
    }
  }

  DType dtype() const { return widens_ ? DType::kF32 : dtype_; }
  size_t bytes() const { return count_ * SizeOf(dtype()); }

  // Gives the values, which are reduced in place, and the function that reduces them to Gloo's `options`.
  template <typename Options>
  void Fill(Options* options) const {
    switch (SizeOf(dtype())) {
      case 1:
        options->setOutput(reinterpret_cast<uint8_t*>(values_), count_);
        break;
      case 2:
        options->setOutput(reinterpret_cast<uint16_t*>(values_), count_);
        break;
      case 4:
        options->setOutput(reinterpret_cast<uint32_t*>(values_), count_);
        break;
      default:
        options->setOutput(reinterpret_cast<uint64_t*>(values_), count_);
    }
    // Averages and premultiplied sums are sums between the ranks.
    const ReduceOp op = op_ == ReduceOp::kAvg || op_ == ReduceOp::kPremulSum ? ReduceOp::kSum : op_;
    options->setReduceFunction([op, dtype = dtype()](void* to, const void* a, const void* b, size_t count) {
      ReduceInRankOrder(op, dtype, {a, b}, {}, 1, count, to);
    });
  }

  // Puts the reduced values into the result.
  void Finish() const {
    if (out_ == nullptr) return;
    if (op_ == ReduceOp::kAvg) {
      ReduceInRankOrder(ReduceOp::kAvg, dtype(), {values_}, {}, world_size_, count_, values_);
    }
    if (widens_) NarrowFromF32(dtype_, reinterpret_cast<float*>(values_), count_, out_);
  }

 private:
  const ReduceOp op_;
  const DType dtype_;
  const size_t count_;
  const int world_size_;
  const bool widens_;
  void* const out_;
  char* values_;
};

// The parts of an operation as one contiguous array. `AnyPart` is Part or ConstPart.
template <typename AnyPart>
class Packed {
 public:
  Packed(absl::Span<const AnyPart> parts, size_t element, tcp::Scratch* scratch) : parts_(parts) {
    bool contiguous = true;
    char* next = nullptr;
    for (const AnyPart& part : parts) {
      const size_t bytes = part.count * element;
      sizes_.push_back(bytes);
      total_ += bytes;
      if (bytes == 0) continue;
      if (next == nullptr) base_ = Bytes(part.data);
      contiguous = contiguous && (next == nullptr || next == part.data);
      next = Bytes(part.data) + bytes;
    }
    copied_ = !contiguous;
    if (copied_ || base_ == nullptr) base_ = scratch->Get(total_ + 1);
  }

  // Copies the parts into the array, or back, if they are not contiguous already.
  void Gather() const {
    Copy([](char* array, char* part, size_t bytes) { std::memcpy(array, part, bytes); });
  }
  void Scatter() const {
    Copy([](char* array, char* part, size_t bytes) { std::memcpy(part, array, bytes); });
  }

  char* data() const { return base_; }
  size_t total() const { return total_; }
  template <typename T>
  std::vector<T> sizes() const {
    return {sizes_.begin(), sizes_.end()};
  }
  size_t offset(int rank) const {
    size_t offset = 0;
    for (int r = 0; r < rank; ++r) offset += sizes_[r];
    return offset;
  }

 private:
  template <typename Move>
  void Copy(const Move& move) const {
    if (!copied_) return;
    size_t offset = 0;
    for (size_t i = 0; i < parts_.size(); ++i) {
      if (sizes_[i] > 0) move(base_ + offset, Bytes(parts_[i].data), sizes_[i]);
      offset += sizes_[i];
    }
  }

  const absl::Span<const AnyPart> parts_;
  std::vector<size_t> sizes_;  // in bytes
  size_t total_ = 0;
  char* base_ = nullptr;
  bool copied_ = false;
};

void AllReduce(const Operation& operation, const Context& context, uint32_t tag, Memory* memory) {
  const Reduction reduction(operation, context->size, operation.out.data, memory);
  using Algorithm = ::gloo::AllreduceOptions::Algorithm;
  ::gloo::AllreduceOptions options(context);
  options.setAlgorithm(reduction.bytes() <= kShortBytes ? Algorithm::BCUBE : Algorithm::RING);
  options.setTag(tag);
  reduction.Fill(&options);
  ::gloo::allreduce(options);
  reduction.Finish();
}

void Reduce(const Operation& operation, const Context& context, uint32_t tag, Memory* memory) {
  const bool is_root = context->rank == operation.root;
  const Reduction reduction(operation, context->size, is_root ? operation.out.data : nullptr, memory);
  ::gloo::ReduceOptions options(context);
  options.setRoot(operation.root);
  options.setTag(tag);
  reduction.Fill(&options);
  ::gloo::reduce(options);
  reduction.Finish();
}

void Broadcast(const Operation& operation, const Context& context, uint32_t tag) {
  const bool is_root = context->rank == operation.root;
  const size_t size = SizeOf(operation.dtype);
  ::gloo::BroadcastOptions options(context);
  options.setRoot(operation.root);
  options.setTag(tag);
  if (!is_root) {
    options.setOutput(Bytes(operation.out.data), operation.out.count * size);
  } else {
    const bool in_place = operation.out.count == 0 || operation.out.data == operation.in.data;
    const size_t bytes = operation.in.count * size;
    if (!in_place) options.setInput(Bytes(operation.in.data), bytes);
    options.setOutput(in_place ? Bytes(operation.in.data) : Bytes(operation.out.data), bytes);
  }
  ::gloo::broadcast(options);
}

void AllGather(const Operation& operation, const Context& context, uint32_t tag, Memory* memory) {
  const size_t bytes = operation.in.count * SizeOf(operation.dtype);
  const Packed<Part> out(operation.outs, SizeOf(operation.dtype), &memory->out);
  if (out.total() == 0) return;
  const bool in_place = operation.in.data == out.data() + out.offset(context->rank);
  if (operation.even) {
    ::gloo::AllgatherOptions options(context);
    options.setTag(tag);
    if (!in_place) options.setInput(Bytes(operation.in.data), bytes);
    options.setOutput(out.data(), out.total());
    ::gloo::allgather(options);
  } else {
    ::gloo::AllgathervOptions options(context);
    options.setTag(tag);
    if (!in_place) options.setInput(Bytes(operation.in.data), bytes);
    options.setOutput(out.data(), out.sizes<size_t>());
    ::gloo::allgatherv(options);
  }
  out.Scatter();
}

// Runs the kinds whose ranks exchange parts of any size.
void AllToAllV(absl::Span<const ConstPart> ins, absl::Span<const Part> outs, size_t element,
               const Context& context, uint32_t tag, Memory* memory) {
  const Packed<ConstPart> in(ins, element, &memory->in);
  const Packed<Part> out(outs, element, &memory->out);
  in.Gather();
  ::gloo::AlltoallvOptions options(context);
  options.setTag(tag);
  options.setInput(in.data(), in.sizes<int64_t>());
  options.setOutput(out.data(), out.sizes<int64_t>());
  ::gloo::alltoallv(options);
  out.Scatter();
}

void AllToAll(const Operation& operation, const Context& context, uint32_t tag, Memory* memory) {
  const size_t element = SizeOf(operation.dtype);
  if (!operation.even) return AllToAllV(operation.ins, operation.outs, element, context, tag, memory);
  const size_t bytes = operation.ins[0].count * element * operation.ins.size();
  if (bytes == 0) return;
  ::gloo::AlltoallOptions options(context);
  options.setTag(tag);
  options.setInput(Bytes(operation.ins[0].data), bytes);
  options.setOutput(Bytes(operation.outs[0].data), bytes);
  ::gloo::alltoall(options);
}

void Gather(const Operation& operation, const Context& context, uint32_t tag, Memory* memory) {
  const bool is_root = context->rank == operation.root;
  const size_t element = SizeOf(operation.dtype);
  if (!operation.even) {
    std::vector<ConstPart> ins(context->size);
    ins[operation.root] = operation.in;
    std::vector<Part> outs(context->size);
    if (is_root) outs.assign(operation.outs.begin(), operation.outs.end());
    return AllToAllV(ins, outs, element, context, tag, memory);
  }
  const size_t bytes = operation.in.count * element;
  if (bytes == 0) return;
  ::gloo::GatherOptions options(context);
  options.setRoot(operation.root);
  options.setTag(tag);
  options.setInput(Bytes(operation.in.data), bytes);
  if (is_root) options.setOutput(Bytes(operation.outs[0].data), bytes * context->size);
  ::gloo::gather(options);
}

void Scatter(const Operation& operation, const Context& context, uint32_t tag, Memory* memory) {
  const bool is_root = context->rank == operation.root;
  const size_t element = SizeOf(operation.dtype);
  if (!operation.even) {
    std::vector<Part> outs(context->size);
    outs[operation.root] = operation.out;
    std::vector<ConstPart> ins(context->size);
    if (is_root) ins.assign(operation.ins.begin(), operation.ins.end());
    return AllToAllV(ins, outs, element, context, tag, memory);
  }
  const size_t bytes = operation.out.count * element;
  if (bytes == 0) return;
  ::gloo::ScatterOptions options(context);
  options.setRoot(operation.root);
  options.setTag(tag);
  options.setOutput(Bytes(operation.out.data), bytes);
  if (is_root) {
    std::vector<char*> ins;
    for (const ConstPart& part : operation.ins) ins.push_back(Bytes(part.data));
    options.setInputs(std::move(ins), bytes);
  }
  ::gloo::scatter(options);
}

}  // namespace

bool HasAlgorithm(OpKind kind) { return kind != OpKind::kReduceScatter; }

void RunAlgorithm(const Operation& operation, const Context& context, Memory* memory) {
  // Messages of consecutive operations must not meet.
  const auto tag = static_cast<uint32_t>(operation.sequence);
  switch (operation.kind) {
    case OpKind::kAllReduce:
      if (operation.in.count > 0) AllReduce(operation, context, tag, memory);
      return;
    case OpKind::kReduce:
      if (operation.in.count > 0) Reduce(operation, context, tag, memory);
      return;
    case OpKind::kBroadcast: {
      const bool is_root = context->rank == operation.root;
      if ((is_root ? operation.in.count : operation.out.count) > 0) Broadcast(operation, context, tag);
      return;
    }
    case OpKind::kAllGather:
      return AllGather(operation, context, tag, memory);
    case OpKind::kGather:
      return Gather(operation, context, tag, memory);
    case OpKind::kScatter:
      return Scatter(operation, context, tag, memory);
    case OpKind::kAllToAll:
      return AllToAll(operation, context, tag, memory);
    case OpKind::kBarrier: {
      ::gloo::BarrierOptions options(context);
      options.setTag(tag);
      ::gloo::barrier(options);
      return;
    }
    default:
      return;
  }
}

}  // namespace tandem::collectives::gloo_library

// SPDX-License-Identifier: Apache-2.0
// Compares the reduction kernels with memcpy and a plain loop. GB/s count all memory read and written:
// (sources + 1) * size for a reduction, 2 * size for memcpy.

#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "absl/strings/str_cat.h"
#include "benchmark/benchmark.h"
#include "collectives/reduce/reduce.h"

namespace tandem::collectives {
namespace {

constexpr size_t kSizes[] = {8, 1 << 10, 64 << 10, 1 << 20, 64 << 20};

// Allocates separate pages and writes them once.
struct Free {
  void operator()(char* memory) const { std::free(memory); }
};
using Buffer = std::unique_ptr<char, Free>;
Buffer MakeBuffer(size_t bytes) {
  constexpr size_t kPage = 4096;
  Buffer buffer(static_cast<char*>(std::aligned_alloc(kPage, (bytes + kPage - 1) / kPage * kPage)));
  std::memset(buffer.get(), 0, bytes);
  return buffer;
}

void SetBytes(benchmark::State& state, size_t bytes) {
  state.SetBytesProcessed(static_cast<int64_t>(bytes) * state.iterations());
}

void BM_Memcpy(benchmark::State& state, size_t bytes) {
  const Buffer from = MakeBuffer(bytes), to = MakeBuffer(bytes);
  for (auto _ : state) {
    std::memcpy(to.get(), from.get(), bytes);
    benchmark::ClobberMemory();
  }
  SetBytes(state, 2 * bytes);
}

// The loop that a program would contain without this library, compiled with the same flags.
void BM_PlainLoopF32(benchmark::State& state, size_t bytes) {
  const Buffer a = MakeBuffer(bytes), b = MakeBuffer(bytes), to = MakeBuffer(bytes);
  const float* const first = reinterpret_cast<const float*>(a.get());
  const float* const second = reinterpret_cast<const float*>(b.get());
  float* const out = reinterpret_cast<float*>(to.get());
  for (auto _ : state) {
    for (size_t i = 0; i < bytes / sizeof(float); ++i) out[i] = first[i] + second[i];
    benchmark::ClobberMemory();
  }
  SetBytes(state, 3 * bytes);
}

struct Shape {
  ReduceOp op = ReduceOp::kSum;
  DType dtype = DType::kF32;
  size_t num_sources = 2;
  bool in_place = false;
  WriteHint hint = WriteHint::kCache;
};

void BM_Reduce(benchmark::State& state, Shape shape, size_t bytes) {
  std::vector<Buffer> buffers;
  std::vector<const void*> sources;
  for (size_t s = 0; s < shape.num_sources; ++s) {
    buffers.push_back(MakeBuffer(bytes));
    sources.push_back(buffers.back().get());
  }
  buffers.push_back(MakeBuffer(bytes));
  void* const out = shape.in_place ? buffers.front().get() : buffers.back().get();
  const std::vector<double> factors(shape.op == ReduceOp::kPremulSum ? shape.num_sources : 0, 0.5);
  const size_t n = bytes / SizeOf(shape.dtype);
  for (auto _ : state) {
    ReduceInRankOrder(shape.op, shape.dtype, sources, factors, 3, n, out, shape.hint);
    benchmark::ClobberMemory();
  }
  SetBytes(state, (shape.num_sources + 1) * bytes);
}

void Register() {
  for (const size_t bytes : kSizes) {
    benchmark::RegisterBenchmark(absl::StrCat("memcpy/", bytes).c_str(), BM_Memcpy, bytes);
    benchmark::RegisterBenchmark(absl::StrCat("plain_loop/f32/", bytes).c_str(), BM_PlainLoopF32, bytes);
    for (const size_t num_sources : {2, 4, 8}) {
      for (const bool in_place : {false, true}) {
        for (const WriteHint hint : {WriteHint::kCache, WriteHint::kStream}) {
          const std::string name =
              absl::StrCat("sum/f32/", num_sources, "_sources", in_place ? "/in_place" : "",
                           hint == WriteHint::kStream ? "/stream/" : "/", bytes);
          benchmark::RegisterBenchmark(name.c_str(), BM_Reduce,
                                       Shape{.num_sources = num_sources, .in_place = in_place, .hint = hint},
                                       bytes);
        }
      }
    }
  }
  // Every kernel once, on data that fits a cache.
  constexpr size_t kBytes = 64 << 10;
  for (int dtype = 0; dtype < kNumDTypes; ++dtype) {
    for (int op = 0; op <= static_cast<int>(ReduceOp::kPremulSum); ++op) {
      const Shape shape{.op = static_cast<ReduceOp>(op), .dtype = static_cast<DType>(dtype)};
      if (!SupportsReduction(shape.op, shape.dtype).ok()) continue;
      benchmark::RegisterBenchmark(
          absl::StrCat("kernel/", Name(shape.dtype), "/", Name(shape.op), "/", kBytes).c_str(), BM_Reduce,
          shape, kBytes);
    }
  }
}

}  // namespace
}  // namespace tandem::collectives

int main(int argc, char** argv) {
  tandem::collectives::Register();
  benchmark::Initialize(&argc, argv);
  if (benchmark::ReportUnrecognizedArguments(argc, argv)) return 1;
  benchmark::RunSpecifiedBenchmarks();
  return 0;
}

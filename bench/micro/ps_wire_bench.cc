// SPDX-License-Identifier: Apache-2.0
// Measures the wire format between worker and parameter server: encoding and decoding of rows and ids, and
// merging of repeated ids. Times are per row or id, next to a plain copy of the same floats.
//
//   ps_wire_bench --benchmark_filter=Rows

#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "base/random.h"
#include "benchmark/benchmark.h"
#include "ps/client/error_feedback.h"
#include "ps/dedupe.h"
#include "ps/wire/id_codec.h"
#include "ps/wire/value_codec.h"

namespace tandem::ps {
namespace {

constexpr size_t kRows = 16384;

std::vector<float> Floats(size_t count) {
  CounterRandom random(1, 0);
  std::vector<float> values(count);
  for (float& value : values) value = static_cast<float>(random.Below(2000001)) / 1e6f - 1.0f;
  return values;
}

void CountRows(benchmark::State& state, size_t dim) {
  state.SetItemsProcessed(state.iterations() * kRows);
  // bytes of the floats, not of their encoding
  state.SetBytesProcessed(state.iterations() * kRows * dim * sizeof(float));
}

void CopyRows(benchmark::State& state) {
  const size_t dim = state.range(0);
  const std::vector<float> from = Floats(kRows * dim);
  std::vector<float> to(from.size());
  for (auto _ : state) {
    std::memcpy(to.data(), from.data(), from.size() * sizeof(float));
    benchmark::ClobberMemory();
  }
  CountRows(state, dim);
}
BENCHMARK(CopyRows)->Arg(16)->Arg(64)->Arg(128);

void EncodeRows(benchmark::State& state) {
  const auto format = static_cast<v1::ValueFormat>(state.range(0));
  const size_t dim = state.range(1);
  const std::vector<float> values = Floats(kRows * dim);
  std::string wire(kRows * RowBytes(format, dim), '\0');
  for (auto _ : state) {
    ps::EncodeRows(format, values.data(), nullptr, kRows, dim, wire.data());
    benchmark::ClobberMemory();
  }
  CountRows(state, dim);
  state.SetLabel(std::string(Name(format)));
}
BENCHMARK(EncodeRows)->ArgsProduct({{v1::VALUES_F16, v1::VALUES_BF16, v1::VALUES_INT8}, {16, 64, 128}});

void DecodeRows(benchmark::State& state) {
  const auto format = static_cast<v1::ValueFormat>(state.range(0));
  const size_t dim = state.range(1);
  std::vector<float> values = Floats(kRows * dim);
  std::string wire(kRows * RowBytes(format, dim), '\0');
  ps::EncodeRows(format, values.data(), nullptr, kRows, dim, wire.data());
  for (auto _ : state) {
    ps::DecodeRows(format, wire.data(), nullptr, kRows, dim, values.data());
    benchmark::ClobberMemory();
  }
  CountRows(state, dim);
  state.SetLabel(std::string(Name(format)));
}
BENCHMARK(DecodeRows)->ArgsProduct({{v1::VALUES_F16, v1::VALUES_BF16, v1::VALUES_INT8}, {16, 64, 128}});

// Measures the check of a push's gradients, by the client before it sends them and by the server.
void CheckGradients(benchmark::State& state) {
  const size_t dim = static_cast<size_t>(state.range(0));
  const std::vector<float> rows(kRows * dim, 0.25f);
  for (auto _ : state) benchmark::DoNotOptimize(LargestMagnitude(rows));
  state.SetItemsProcessed(state.iterations() * kRows);
}
BENCHMARK(CheckGradients)->Arg(16)->Arg(64)->Arg(128);

// Encodes int8 with error feedback; the same 16384 ids are pushed each time.
void EncodeRowsWithFeedback(benchmark::State& state) {
  const size_t dim = state.range(0);
  const std::vector<float> values = Floats(kRows * dim);
  std::vector<uint64_t> ids(kRows);
  for (size_t i = 0; i < kRows; ++i) ids[i] = Mix64(i);
  std::string wire(kRows * RowBytes(v1::VALUES_INT8, dim), '\0');
  ErrorFeedback feedback(dim, size_t{1} << 30);
  for (auto _ : state) {
    feedback.Encode(v1::VALUES_INT8, ids, values.data(), nullptr, wire.data());
    benchmark::ClobberMemory();
  }
  CountRows(state, dim);
}
BENCHMARK(EncodeRowsWithFeedback)->Arg(16)->Arg(64)->Arg(128);

// Returns ids. 25 bits: ids below 2^25. 64 bits: hashes. 0 bits: ascending ids with small gaps.
std::vector<uint64_t> Ids(int bits) {
  CounterRandom random(2, 0);
  std::vector<uint64_t> ids(kRows);
  uint64_t last = 0;
  for (uint64_t& id : ids) id = bits == 0 ? last += 1 + random.Below(7) : random() >> (64 - bits);
  return ids;
}

void PackIds(benchmark::State& state) {
  const std::vector<uint64_t> ids = Ids(static_cast<int>(state.range(0)));
  IdPacker packer;
  std::string packed(packer.Plan(ids), '\0');
  for (auto _ : state) {
    benchmark::DoNotOptimize(packer.Plan(ids));
    packer.Write(ids, packed.data());
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * kRows);
  state.counters["bytes_per_id"] = static_cast<double>(packed.size()) / kRows;
}
BENCHMARK(PackIds)->Arg(0)->Arg(12)->Arg(25)->Arg(40);

// The cost of `auto` for ids for which packing saves nothing.
void PlanIds(benchmark::State& state) {
  const std::vector<uint64_t> ids = Ids(static_cast<int>(state.range(0)));
  IdPacker packer;
  for (auto _ : state) benchmark::DoNotOptimize(packer.Plan(ids));
  state.SetItemsProcessed(state.iterations() * kRows);
}
BENCHMARK(PlanIds)->Arg(64);

void UnpackIds(benchmark::State& state) {
  const std::vector<uint64_t> ids = Ids(static_cast<int>(state.range(0)));
  IdPacker packer;
  std::string packed(packer.Plan(ids), '\0');
  packer.Write(ids, packed.data());
  std::vector<uint64_t> out(kRows);
  for (auto _ : state) {
    benchmark::DoNotOptimize(ps::UnpackIds(packed, kRows, out.data()).ok());
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * kRows);
}
BENCHMARK(UnpackIds)->Arg(0)->Arg(12)->Arg(25)->Arg(40);

void CopyIds(benchmark::State& state) {
  const std::vector<uint64_t> ids = Ids(64);
  std::vector<uint64_t> out(kRows);
  for (auto _ : state) {
    std::memcpy(out.data(), ids.data(), kRows * sizeof(uint64_t));
    benchmark::ClobberMemory();
  }
  state.SetItemsProcessed(state.iterations() * kRows);
}
BENCHMARK(CopyIds);

// range(0) is the percentage of distinct ids.
void Dedupe(benchmark::State& state) {
  CounterRandom random(3, 0);
  const uint64_t distinct = kRows * state.range(0) / 100;
  std::vector<uint64_t> ids(kRows), unique;
  for (uint64_t& id : ids) id = Mix64(random.Below(distinct));
  std::vector<uint32_t> index;
  Deduper deduper;
  for (auto _ : state) {
    deduper.Run(ids, &unique, &index);
    benchmark::DoNotOptimize(unique.data());
  }
  state.SetItemsProcessed(state.iterations() * kRows);
}
BENCHMARK(Dedupe)->Arg(10)->Arg(50)->Arg(100);

}  // namespace
}  // namespace tandem::ps

BENCHMARK_MAIN();

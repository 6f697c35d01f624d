// SPDX-License-Identifier: Apache-2.0
// Measures the cost of a trace event (base/trace/trace.h), with and without recording.

#include <memory>

#include "base/status.h"
#include "base/trace/recorder.h"
#include "base/trace/trace.h"
#include "benchmark/benchmark.h"

namespace tandem::trace {
namespace {

constexpr Kind kKind{"work", "bench", {"bytes", "rows"}};

void Empty(benchmark::State& state) {
  int64_t n = 0;
  for (auto _ : state) benchmark::DoNotOptimize(++n);
}
BENCHMARK(Empty);

void SpanOff(benchmark::State& state) {
  int64_t n = 0;
  for (auto _ : state) {
    const Span span(kKind, n);
    benchmark::DoNotOptimize(++n);
  }
}
BENCHMARK(SpanOff);

// A recorder for the duration of a benchmark with one or more threads.
class Recording : public benchmark::Fixture {
 public:
  void SetUp(const benchmark::State& state) override {
    if (state.thread_index() == 0) TANDEM_CHECK(recorder_.Start().ok());
  }
  void TearDown(const benchmark::State& state) override {
    if (state.thread_index() == 0) recorder_.Stop();
  }

 private:
  Recorder recorder_;
};

BENCHMARK_DEFINE_F(Recording, SpanOn)(benchmark::State& state) {
  int64_t n = 0;
  for (auto _ : state) {
    const Span span(kKind, n, n);
    benchmark::DoNotOptimize(++n);
  }
}
BENCHMARK_REGISTER_F(Recording, SpanOn)->Threads(1)->Threads(2);

BENCHMARK_DEFINE_F(Recording, Clock)(benchmark::State& state) {
  for (auto _ : state) benchmark::DoNotOptimize(Begin());
}
BENCHMARK_REGISTER_F(Recording, Clock);

}  // namespace
}  // namespace tandem::trace

BENCHMARK_MAIN();

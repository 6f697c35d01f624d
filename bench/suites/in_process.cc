// SPDX-License-Identifier: Apache-2.0
#include "bench/suites/in_process.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <map>
#include <memory>
#include <numeric>
#include <utility>
#include <vector>

#include "base/status.h"
#include "bench/harness/id_batches.h"
#include "bench/harness/measure.h"
#include "bench/harness/ps_report.h"
#include "bench/suites/row_model.h"
#include "ps/shard_map.h"
#include "ps/storage/rows/arena.h"
#include "ps/storage/table_storage.h"

namespace tandem::bench {
namespace {

using Batches = std::vector<std::vector<uint64_t>>;

template <typename F>
double Microseconds(const F& call) {
  const auto begin = std::chrono::steady_clock::now();
  call();
  return std::chrono::duration<double, std::micro>(std::chrono::steady_clock::now() - begin).count();
}

// Rows of an array, `stride` floats apart; the first `dim` floats of a row are read.
class PlainRows {
 public:
  PlainRows(uint64_t rows, size_t dim, size_t stride)
      : dim_(dim), stride_(stride), memory_(arena_.AllocateZeroed(rows * stride * sizeof(float))) {
    std::fill_n(data(), rows * stride, 1.0f);
  }

  void Gather(absl::Span<const uint64_t> ids, float* out) const { (this->*best_)(ids, out); }

  // Selects the fastest prefetch distance and cache level.
  void Calibrate(const Batches& batches, float* out) {
    using Self = PlainRows;
    const GatherFunction candidates[] = {&Self::Copy<3, 8>, &Self::Copy<3, 16>, &Self::Copy<3, 32>,
                                         &Self::Copy<2, 8>, &Self::Copy<2, 16>, &Self::Copy<2, 32>,
                                         &Self::Copy<2, 64>};
    std::vector<std::vector<double>> times(std::size(candidates));
    for (size_t round = 0; round < 2 * batches.size() && round < 64; ++round) {
      for (size_t w = 0; w < std::size(candidates); ++w) {
        const auto& batch = batches[(round * std::size(candidates) + w) % batches.size()];
        times[w].push_back(Microseconds([&] { (this->*candidates[w])(batch, out); }));
      }
    }
    double best = 0;
    for (size_t w = 0; w < std::size(candidates); ++w) {
      const double median = Summarize(times[w]).median_us;
      if (w > 0 && median >= best) continue;
      best = median;
      best_ = candidates[w];
    }
  }

 private:
  using GatherFunction = void (PlainRows::*)(absl::Span<const uint64_t>, float*) const;

  // kLocality is an argument of __builtin_prefetch: 3 is the first-level cache, 2 the second, which supports
  // more outstanding prefetches.
  template <int kLocality, size_t kAhead>
  void Copy(absl::Span<const uint64_t> ids, float* out) const {
    const size_t bytes = dim_ * sizeof(float);
    const float* const rows = data();
    for (size_t i = 0; i < ids.size(); ++i) {
      if (i + kAhead < ids.size()) {
        const char* const ahead = reinterpret_cast<const char*>(rows + ids[i + kAhead] * stride_);
        for (size_t at = 0; at < bytes; at += 64) __builtin_prefetch(ahead + at, 0, kLocality);
      }
      std::memcpy(out + i * dim_, rows + ids[i] * stride_, bytes);
    }
  }
  float* data() const { return reinterpret_cast<float*>(memory_.data()); }

  const size_t dim_, stride_;
  ps::Arena arena_;
  const ps::Arena::Block memory_;
  GatherFunction best_ = &PlainRows::Copy<3, 16>;
};

// Measures one case.
class InProcessCase {
 public:
  InProcessCase(const PsCase& bench_case, ps::TableStorage* table, const PlainRows* plain, RowModel* model,
                const Batches& batches)
      : case_(bench_case), table_(table), plain_(plain), model_(model), batches_(batches) {
    out_.resize(case_.ids * case_.dim);
    gradients_.assign(out_.size(), RowModel::kGradient);
  }

  absl::StatusOr<PsResult> Measure(absl::Duration duration) {
    TANDEM_RETURN_IF_ERROR(Run(duration / 5));  // to warm up
    calls_us_.clear();
    plain_us_.clear();
    table_cpu_seconds_ = 0;
    TANDEM_RETURN_IF_ERROR(Run(duration));
    TANDEM_RETURN_IF_ERROR(Verify());
    const double keys = static_cast<double>(case_.ids) * static_cast<double>(calls_us_.size());
    PsResult result;
    result.call = Summarize(calls_us_);
    result.client_cpu_s_per_mkeys = table_cpu_seconds_ / keys * 1e6;
    if (case_.op == PsOp::kPull) {
      result.keys_per_s = static_cast<double>(case_.ids) / result.call.median_us * 1e6;
      result.plain_keys_per_s = static_cast<double>(case_.ids) / Summarize(plain_us_).median_us * 1e6;
    } else {
      result.keys_per_s = keys / std::accumulate(calls_us_.begin(), calls_us_.end(), 0.0) * 1e6;
    }
    return result;
  }

 private:
  const std::vector<uint64_t>& Next() { return batches_[next_++ % batches_.size()]; }

  absl::Status Run(absl::Duration duration) {
    const auto end = std::chrono::steady_clock::now() + absl::ToChronoNanoseconds(duration);
    do {
      if (case_.op == PsOp::kPull) {
        const auto& ids = Next();
        plain_us_.push_back(Microseconds([&] { plain_->Gather(ids, out_.data()); }));
      }
      const bool pull = case_.op == PsOp::kPull || (case_.op == PsOp::kMixed && calls_us_.size() % 2 == 0);
      const auto& ids = Next();
      absl::Status status;
      const double us = Microseconds([&] { status = Call(pull, ids); });
      TANDEM_RETURN_IF_ERROR(status);
      if (!pull) model_->Push(ids, 1);
      calls_us_.push_back(us);
      table_cpu_seconds_ += us / 1e6;  // the call only computes, so wall time is CPU time
    } while (std::chrono::steady_clock::now() < end);
    return absl::OkStatus();
  }

  absl::Status Call(bool pull, absl::Span<const uint64_t> ids) {
    if (pull) return table_->Gather(ids, /*create=*/true, out_.data());
    return table_->Apply(ids, gradients_.data(), {}).status();
  }

  absl::Status Verify() {
    for (size_t i = 0; i < batches_.size() && i < 4; ++i) {
      const auto& ids = Next();
      TANDEM_RETURN_IF_ERROR(Call(/*pull=*/true, ids));
      TANDEM_RETURN_IF_ERROR(model_->Check(ids, out_.data()));
    }
    return absl::OkStatus();
  }

  const PsCase case_;
  ps::TableStorage* const table_;
  const PlainRows* const plain_;
  RowModel* const model_;
  const Batches& batches_;
  std::vector<float> out_, gradients_;
  std::vector<double> calls_us_, plain_us_;
  double table_cpu_seconds_ = 0;
  size_t next_ = 0;
};

}  // namespace

absl::Status MeasureInProcess(const PsGroup& group, uint64_t rows, absl::Duration time_per_case, bool json) {
  const v1::TableConfig config = PsBenchTable(group.dim, /*workers=*/1);
  const auto table = ps::TableStorage::Create(config, ps::kDefaultBuckets, [](uint32_t) { return true; });
  {
    std::vector<uint64_t> ids(4096);
    std::vector<float> out(ids.size() * group.dim);
    for (uint64_t first = 0; first < rows; first += ids.size()) {
      ids.resize(std::min<uint64_t>(ids.size(), rows - first));
      std::iota(ids.begin(), ids.end(), first);
      TANDEM_RETURN_IF_ERROR(table->Gather(ids, /*create=*/true, out.data()));
    }
  }
  // Half of the memory channels are idle if rows are 512 bytes apart. The table avoids that, too.
  const size_t row_floats = table->row_floats();
  PlainRows plain(rows, group.dim, row_floats % 128 == 0 && group.dim <= 64 ? row_floats + 16 : row_floats);
  RowModel model(config, rows);
  std::map<std::pair<PsDistribution, size_t>, Batches> batches;
  for (const PsCase& c : group.cases) {
    Batches& drawn = batches[{c.distribution, c.ids}];
    if (drawn.empty()) {
      drawn = MakeIdBatches(c.ids, rows, c.distribution);
      std::vector<float> out(c.ids * c.dim);
      plain.Calibrate(drawn, out.data());
    }
    TANDEM_ASSIGN_OR_RETURN(const PsResult result,
                            InProcessCase(c, table.get(), &plain, &model, drawn).Measure(time_per_case));
    Print(c, result, json);
  }
  return absl::OkStatus();
}

}  // namespace tandem::bench

// SPDX-License-Identifier: Apache-2.0
#include "bench/harness/id_batches.h"

#include <algorithm>
#include <cmath>

namespace tandem::bench {
namespace {

constexpr size_t kIds = size_t{1} << 19;
constexpr size_t kFewestBatches = 16, kMostBatches = 32768;
// A prime, so that it has no factor in common with a smaller number of rows.
constexpr uint64_t kScatter = 2654435761;

}  // namespace

ZipfRanks::ZipfRanks(uint64_t count, double exponent)
    : count_(static_cast<double>(count)), exponent_(exponent) {
  low_ = Integral(1.5) - 1.0;
  high_ = Integral(count_ + 0.5);
  accept_distance_ = 2.0 - InverseIntegral(Integral(2.5) - std::pow(2.0, -exponent_));
}

double ZipfRanks::Integral(double x) const {
  return (std::pow(x, 1.0 - exponent_) - 1.0) / (1.0 - exponent_);
}

double ZipfRanks::InverseIntegral(double y) const {
  return std::pow(1.0 + y * (1.0 - exponent_), 1.0 / (1.0 - exponent_));
}

uint64_t ZipfRanks::Draw(CounterRandom* random) const {
  while (true) {
    const double y = high_ + random->UniformDouble() * (low_ - high_);
    const double x = InverseIntegral(y);
    const double k = std::clamp(std::floor(x + 0.5), 1.0, count_);
    if (k - x <= accept_distance_ || y >= Integral(k + 0.5) - std::pow(k, -exponent_)) {
      return static_cast<uint64_t>(k) - 1;
    }
  }
}

std::vector<std::vector<uint64_t>> MakeIdBatches(size_t ids, uint64_t rows, PsDistribution distribution) {
  CounterRandom random(/*seed=*/1, ids * 2 + static_cast<uint64_t>(distribution));
  const ZipfRanks zipf(rows, kZipfExponent);
  std::vector<std::vector<uint64_t>> batches(std::clamp(kIds / ids, kFewestBatches, kMostBatches));
  std::vector<uint32_t> taken(rows, 0);  // last batch (from 1) that contains the id
  uint32_t number = 0;
  for (std::vector<uint64_t>& batch : batches) {
    ++number;
    batch.reserve(ids);
    while (batch.size() < ids) {
      // Frequent ids are spread over the table.
      const uint64_t id = distribution == PsDistribution::kUniform ? random.Below(rows)
                                                                   : zipf.Draw(&random) * kScatter % rows;
      if (taken[id] == number) continue;
      taken[id] = number;
      batch.push_back(id);
    }
  }
  return batches;
}

}  // namespace tandem::bench

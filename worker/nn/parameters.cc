// SPDX-License-Identifier: Apache-2.0
#include "worker/nn/parameters.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/random.h"

namespace tandem::worker {

size_t Parameters::AddZeros(absl::string_view name, std::vector<int> shape, bool decay) {
  ParameterBlock block;
  block.name = std::string(name);
  block.offset = values_.size();
  block.size = 1;
  for (int extent : shape) block.size *= static_cast<size_t>(extent);
  block.shape = std::move(shape);
  block.decay = decay;
  values_.resize(block.offset + block.size);
  gradients_.resize(values_.size());
  blocks_.push_back(std::move(block));
  return blocks_.back().offset;
}

size_t Parameters::AddXavierNormal(absl::string_view name, int out, int in) {
  const size_t offset = AddZeros(name, {out, in}, /*decay=*/true);
  const double deviation = std::sqrt(2.0 / (static_cast<double>(in) + out));
  CounterRandom random(seed_, HashBytes(name));
  for (size_t i = offset; i < values_.size(); ++i)
    values_[i] = static_cast<float>(random.Normal() * deviation);
  return offset;
}

size_t Parameters::AddOrthogonal(absl::string_view name, int out, int in, float gain) {
  const size_t offset = AddZeros(name, {out, in}, /*decay=*/true);
  const size_t rows = static_cast<size_t>(std::min(out, in)), length = static_cast<size_t>(std::max(out, in));
  CounterRandom random(seed_, HashBytes(name));
  std::vector<std::vector<double>> vectors(rows, std::vector<double>(length));
  for (size_t r = 0; r < rows; ++r) {
    std::vector<double>& vector = vectors[r];
    double norm = 0;
    // Gram-Schmidt. A draw that is nearly in the span of the vectors before it is drawn again.
    while (norm < 1e-6) {
      for (double& value : vector) value = random.Normal();
      for (size_t other = 0; other < r; ++other) {
        double product = 0;
        for (size_t i = 0; i < length; ++i) product += vector[i] * vectors[other][i];
        for (size_t i = 0; i < length; ++i) vector[i] -= product * vectors[other][i];
      }
      norm = 0;
      for (const double value : vector) norm += value * value;
      norm = std::sqrt(norm);
    }
    for (double& value : vector) value /= norm;
  }
  const bool transposed = out > in;
  for (size_t row = 0; row < static_cast<size_t>(out); ++row) {
    for (size_t col = 0; col < static_cast<size_t>(in); ++col) {
      const double value = transposed ? vectors[col][row] : vectors[row][col];
      values_[offset + row * static_cast<size_t>(in) + col] = static_cast<float>(value * gain);
    }
  }
  return offset;
}

size_t Parameters::AddOnes(absl::string_view name, int size) {
  const size_t offset = AddZeros(name, {size}, /*decay=*/false);
  std::fill(values_.begin() + static_cast<ptrdiff_t>(offset), values_.end(), 1.0f);
  return offset;
}

size_t Parameters::AddRunningAverages(absl::string_view name, int size, float initial) {
  ParameterBlock block;
  block.name = std::string(name);
  block.shape = {size};
  block.offset = running_averages_.size();
  block.size = static_cast<size_t>(size);
  block.decay = false;
  running_averages_.resize(block.offset + block.size, initial);
  running_average_blocks_.push_back(std::move(block));
  return running_average_blocks_.back().offset;
}

}  // namespace tandem::worker

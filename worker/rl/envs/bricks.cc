// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <array>
#include <memory>

#include "base/status.h"
#include "worker/rl/envs/registry.h"

namespace tandem::rl {
namespace {

// A game of a ball, a paddle and bricks on a grid of 10 x 10.
//
// Rows 1, 2 and 3 begin full of bricks. The ball moves by one cell diagonally in each step. At the left or
// right wall it turns and moves only vertically in that step; at the upper wall it turns down.
//
// If the cell it would enter has a brick, the brick goes, the reward is 1, and the ball turns vertically and
// stays in its cell. When the last brick has gone, three new rows appear.
//
// The paddle is two cells wide and moves along the last row. The ball may come to the row above it with a
// cell of the paddle below. It then turns up: to the left from the paddle's left cell, to the right from the
// other. A ball that comes to the last row ends the episode.
//
// The actions move the paddle left, not, or right; with the probability `sticky` the last action is repeated
// instead. The observation has four planes of 10 x 10: paddle, ball, the ball's cell before the last step,
// and bricks.
class Bricks : public Environment {
 public:
  explicit Bricks(double sticky) : sticky_(sticky) {}

  EnvironmentSpec spec() const override {
    return {.observation_size = 4 * kSize * kSize, .actions = {.choices = 3}};
  }

  void Reset(CounterRandom& random) override {
    bricks_ = FullWall();
    paddle_ = kSize / 2 - 1;
    row_ = old_row_ = kLastBrickRow + 1;
    column_ = old_column_ = static_cast<int>(random.Below(kSize));
    down_ = 1;
    right_ = random.Below(2) == 0 ? -1 : 1;
    last_action_ = 1;
  }

  StepResult Step(absl::Span<const float> action, CounterRandom& random) override {
    int chosen = static_cast<int>(action[0]);
    if (sticky_ > 0 && random.UniformDouble() < sticky_) chosen = last_action_;
    last_action_ = chosen;
    paddle_ = std::clamp(paddle_ + chosen - 1, 0, kSize - kPaddle);
    old_row_ = row_;
    old_column_ = column_;
    int row = row_ + down_, column = column_ + right_;
    if (column < 0 || column >= kSize) {
      right_ = -right_;
      column = column_;
    }
    if (row < 0) {
      down_ = 1;
      row = row_ + 1;
    }
    StepResult result;
    if (bricks_[row * kSize + column]) {
      bricks_[row * kSize + column] = false;
      result.reward = 1.0;
      down_ = -down_;
      // The new wall must not be where the ball is.
      if (std::none_of(bricks_.begin(), bricks_.end(), [](bool brick) { return brick; })) {
        bricks_ = FullWall();
        row_ = kLastBrickRow + 1;
        down_ = 1;
      }
      return result;
    }
    row_ = row;
    column_ = column;
    if (row_ == kSize - 2 && down_ == 1 && column_ >= paddle_ && column_ < paddle_ + kPaddle) {
      down_ = -1;
      right_ = column_ == paddle_ ? -1 : 1;
    }
    result.terminated = row_ == kSize - 1;
    return result;
  }

  void Observe(absl::Span<float> observation) const override {
    std::fill(observation.begin(), observation.end(), 0.0f);
    constexpr int kPlane = kSize * kSize;
    for (int cell = 0; cell < kPaddle; ++cell) observation[(kSize - 1) * kSize + paddle_ + cell] = 1.0f;
    observation[kPlane + row_ * kSize + column_] = 1.0f;
    observation[2 * kPlane + old_row_ * kSize + old_column_] = 1.0f;
    for (int cell = 0; cell < kPlane; ++cell) {
      if (bricks_[cell]) observation[3 * kPlane + cell] = 1.0f;
    }
  }

  std::vector<double> state() const override {
    std::vector<double> state;
    for (const int value : {paddle_, row_, column_, old_row_, old_column_, down_, right_, last_action_})
      state.push_back(value);
    for (const bool brick : bricks_) state.push_back(brick ? 1 : 0);
    return state;
  }
  absl::Status SetState(absl::Span<const double> state) override {
    TANDEM_RETURN_IF_ERROR(CheckStateSize(state, 8 + bricks_.size()));
    const auto at = [&](size_t i, int low, int high) {
      return static_cast<int>(std::clamp(state[i], static_cast<double>(low), static_cast<double>(high)));
    };
    paddle_ = at(0, 0, kSize - kPaddle);
    row_ = at(1, 0, kSize - 2);
    column_ = at(2, 0, kSize - 1);
    old_row_ = at(3, 0, kSize - 1);
    old_column_ = at(4, 0, kSize - 1);
    down_ = state[5] < 0 ? -1 : 1;
    right_ = state[6] < 0 ? -1 : 1;
    last_action_ = at(7, 0, 2);
    for (size_t i = 0; i < bricks_.size(); ++i) bricks_[i] = state[8 + i] > 0.5;
    return absl::OkStatus();
  }

 private:
  static constexpr int kSize = 10, kPaddle = 2, kFirstBrickRow = 1, kLastBrickRow = 3;
  using Cells = std::array<bool, kSize * kSize>;

  static Cells FullWall() {
    Cells cells = {};
    std::fill(cells.begin() + kFirstBrickRow * kSize, cells.begin() + (kLastBrickRow + 1) * kSize, true);
    return cells;
  }

  const double sticky_;
  Cells bricks_ = FullWall();
  int paddle_ = 0;  // its left cell
  int row_ = kLastBrickRow + 1, column_ = 0, old_row_ = kLastBrickRow + 1, old_column_ = 0;
  int down_ = 1, right_ = 1;  // direction of the ball: 1 or -1
  int last_action_ = 1;
};

}  // namespace

EnvironmentKind BricksKind() {
  return {.name = "bricks",
          .summary = "hit bricks with a ball and a paddle on a grid of 10 x 10 with four planes; 1 a brick",
          .fields = {MaxSteps(2000),
                     MemberField<&EnvironmentOptions::sticky>(
                         {.name = "sticky",
                          .help = "probability that the last action is repeated instead of the new one",
                          .range = Fraction(),
                          .default_value = 0.1})},
          .build = [](const EnvironmentOptions& options) -> std::unique_ptr<Environment> {
            return std::make_unique<Bricks>(options.sticky);
          }};
}

}  // namespace tandem::rl

// SPDX-License-Identifier: Apache-2.0
#include "worker/report/progress.h"

#include <algorithm>
#include <cstdio>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace tandem::worker {

Progress::Progress(bool silent, bool terminal, absl::Duration every, Clock* clock)
    : silent_(silent), terminal_(terminal), every_(every), clock_(clock) {}

void Progress::BeginEpoch(int epoch, int epochs, uint64_t total) {
  epoch_ = epoch;
  epochs_ = epochs;
  total_ = total;
  done_ = printed_tenths_ = 0;
  mean_loss_ = -1;
  epoch_begin_ = last_draw_ = clock_->Now();
}

bool Progress::Due() {
  const absl::Time now = clock_->Now();
  if (now - last_draw_ < every_) return false;
  if (!terminal_) {
    const uint64_t tenths = total_ == 0 ? 0 : done_ * 10 / total_;
    if (tenths <= printed_tenths_) return false;
    printed_tenths_ = tenths;
  }
  last_draw_ = now;
  return true;
}

std::string Progress::Line(Staleness staleness) const {
  constexpr int kWidth = 24;
  const double part =
      total_ == 0 ? 0 : std::min(1.0, static_cast<double>(done_) / static_cast<double>(total_));
  const int filled = static_cast<int>(part * kWidth);
  const double seconds = std::max(1e-9, absl::ToDoubleSeconds(clock_->Now() - epoch_begin_));
  const double rate = static_cast<double>(done_) / seconds;
  const double left = rate > 0 ? static_cast<double>(total_ - std::min(total_, done_)) / rate : 0;
  std::string stale = absl::StrFormat("staleness %.1f", staleness.pushes);
  if (staleness.rows >= 0) absl::StrAppendFormat(&stale, " (rows %.2f)", staleness.rows);
  if (staleness.starting) stale = "synchronous start";
  return absl::StrFormat("epoch %d/%d [%s%s] %3.0f%% %8.0f samples/s  loss %.4f  %s  %s left", epoch_,
                         epochs_, std::string(filled, '='), std::string(kWidth - filled, ' '), part * 100,
                         rate, std::max(0.0, mean_loss_), stale,
                         absl::FormatDuration(absl::Seconds(static_cast<int64_t>(left + 0.5))));
}

void Progress::Draw(Staleness staleness) {
  const std::string line = Line(staleness);
  if (terminal_) {
    std::fprintf(stdout, "\r%s\x1b[K", line.c_str());
    on_screen_ = true;
  } else {
    std::fprintf(stdout, "%s\n", line.c_str());
  }
  std::fflush(stdout);
}

void Progress::EndEpoch() {
  if (!on_screen_) return;
  std::fprintf(stdout, "\r\x1b[K");
  std::fflush(stdout);
  on_screen_ = false;
}

}  // namespace tandem::worker

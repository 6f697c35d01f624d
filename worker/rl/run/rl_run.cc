// SPDX-License-Identifier: Apache-2.0
#include "worker/rl/run/rl_run.h"

#include <algorithm>
#include <cstdio>
#include <deque>
#include <filesystem>
#include <memory>
#include <mutex>
#include <numeric>
#include <optional>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/strings/string_view.h"
#include "base/command_context.h"
#include "base/logging.h"
#include "base/random.h"
#include "base/read_file.h"
#include "base/status.h"
#include "worker/nn/gemm.h"
#include "worker/report/tensorboard_writer.h"
#include "worker/rl/run/model_file.h"

namespace tandem::rl {
namespace {

// The episodes over which the mean return is taken.
constexpr size_t kRecent = 100;
// The parts of a run that make a point of its curve.
constexpr uint64_t kCurvePoints = 100;
// The longest time between two progress lines if stdout is no terminal.
constexpr absl::Duration kLineEvery = absl::Seconds(30);

uint64_t HashOf(Policy& policy) {
  const absl::Span<const float> values = policy.parameters().values();
  const absl::Span<const float> averages = policy.parameters().running_averages();
  const auto bytes = [](absl::Span<const float> floats) {
    return absl::string_view(reinterpret_cast<const char*>(floats.data()), floats.size() * sizeof(float));
  };
  return HashBytes(bytes(averages), HashBytes(bytes(values)));
}

// Follows the episodes of a run: recent returns, the curve, progress lines and TensorBoard.
class Follower {
 public:
  // Earlier processes have done `steps` steps.
  Follower(const RlSpec& job, const RlRunOptions& options, uint64_t steps)
      : job_(job), options_(options), last_steps_(steps), curve_parts_(steps / StepsOfPart()) {
    const uint64_t total = job.learner.env_steps;
    printed_tenths_ = std::min(total, steps) * 10 / total;
    begin_ = last_line_ = printed_ = options.clock->Now();
  }

  absl::Status Open() {
    if (options_.tensorboard.empty()) return absl::OkStatus();
    TANDEM_ASSIGN_OR_RETURN(scalars_, worker::TensorboardWriter::Open(options_.tensorboard, options_.clock));
    return absl::OkStatus();
  }

  void Take(Learner& learner) {
    for (const Episode& episode : learner.TakeEpisodes()) {
      ++episodes_;
      recent_.push_back(episode.episode_return);
      if (recent_.size() > kRecent) recent_.pop_front();
      ++part_episodes_;
      part_sum_ += episode.episode_return;
      length_sum_ += static_cast<double>(episode.length);
      ++window_episodes_;
      window_sum_ += episode.episode_return;
    }
    if (const uint64_t parts = learner.env_steps() / StepsOfPart(); parts != curve_parts_) {
      curve_parts_ = parts;
      EndPart(learner);
    }
    const absl::Time now = options_.clock->Now();
    if (now - last_line_ < job_.log_every) return;
    Write(learner, absl::ToDoubleSeconds(now - last_line_));
    Draw(learner, absl::ToDoubleSeconds(now - last_line_));
    last_line_ = now;
    last_steps_ = learner.env_steps();
  }

  // Ends the open parts of curve and scalars, and removes the line from a terminal.
  void End(const Learner& learner) {
    EndPart(learner);
    if (learner.env_steps() > last_steps_)
      Write(learner, absl::ToDoubleSeconds(options_.clock->Now() - last_line_));
    if (!on_screen_) return;
    std::printf("\r\x1b[K");
    std::fflush(stdout);
  }

  double mean_return() const {
    if (recent_.empty()) return 0;
    return std::accumulate(recent_.begin(), recent_.end(), 0.0) / static_cast<double>(recent_.size());
  }
  bool enough() const {
    return job_.mean_return.has_value() && recent_.size() == kRecent && mean_return() >= *job_.mean_return;
  }
  uint64_t episodes() const { return episodes_; }
  double seconds() const { return absl::ToDoubleSeconds(options_.clock->Now() - begin_); }
  std::vector<CurvePoint> TakeCurve() { return std::move(curve_); }
  uint64_t recent() const { return recent_.size(); }
  // Writes scalars; warns once and goes on if the disk fails.
  void Record(int64_t step, absl::Span<const worker::TensorboardWriter::Scalar> values) {
    if (scalars_ == nullptr) return;
    const absl::Status written = scalars_->Write(step, values);
    if (written.ok()) return;
    LogWarning(absl::StrCat(written.message(), "; the run goes on without TensorBoard"));
    scalars_ = nullptr;
  }

 private:
  uint64_t StepsOfPart() const { return std::max<uint64_t>(1, job_.learner.env_steps / kCurvePoints); }

  void EndPart(const Learner& learner) {
    if (part_episodes_ > 0) {
      curve_.push_back({.env_steps = learner.env_steps(),
                        .episodes = part_episodes_,
                        .mean_return = part_sum_ / static_cast<double>(part_episodes_)});
    }
    part_episodes_ = 0;
    part_sum_ = 0;
  }

  void Write(const Learner& learner, double seconds) {
    if (scalars_ == nullptr) return;
    std::vector<worker::TensorboardWriter::Scalar> values = learner.figures();
    values.emplace_back("train/env_steps_per_second",
                        static_cast<double>(learner.env_steps() - last_steps_) / std::max(seconds, 1e-9));
    if (window_episodes_ > 0) {
      values.emplace_back("episode/return", window_sum_ / static_cast<double>(window_episodes_));
      values.emplace_back("episode/length", length_sum_ / static_cast<double>(window_episodes_));
    }
    window_episodes_ = 0;
    window_sum_ = length_sum_ = 0;
    Record(static_cast<int64_t>(learner.env_steps()), values);
  }

  void Draw(const Learner& learner, double seconds) {
    if (options_.silent) return;
    const uint64_t total = job_.learner.env_steps, done = std::min(total, learner.env_steps());
    if (!options_.terminal) {
      // A log gets a line for each tenth of the run, and one now and then in between.
      const absl::Time now = options_.clock->Now();
      if (done * 10 / total <= printed_tenths_ && now - printed_ < kLineEvery) return;
      printed_tenths_ = done * 10 / total;
      printed_ = now;
    }
    const double rate = static_cast<double>(learner.env_steps() - last_steps_) / std::max(seconds, 1e-9);
    const double left = static_cast<double>(total - done) / std::max(rate, 1e-9);
    const std::string line = absl::StrFormat(
        "%3.0f%% of %d steps  %7.0f steps/s  return %.2f (last %d of %d episodes)  %s left",
        100.0 * static_cast<double>(done) / static_cast<double>(total), total, rate, mean_return(),
        recent_.size(), episodes_, absl::FormatDuration(absl::Seconds(static_cast<int64_t>(left + 0.5))));
    if (options_.terminal) {
      std::printf("\r%s\x1b[K", line.c_str());
      on_screen_ = true;
    } else {
      std::printf("%s\n", line.c_str());
    }
    std::fflush(stdout);
  }

  const RlSpec& job_;
  const RlRunOptions& options_;
  std::unique_ptr<worker::TensorboardWriter> scalars_;
  absl::Time begin_, last_line_;
  absl::Time printed_;  // the last line without a terminal
  uint64_t last_steps_, printed_tenths_ = 0;
  bool on_screen_ = false;
  uint64_t episodes_ = 0;
  std::deque<double> recent_;  // returns
  std::vector<CurvePoint> curve_;
  uint64_t curve_parts_, part_episodes_ = 0, window_episodes_ = 0;
  double part_sum_ = 0, window_sum_ = 0, length_sum_ = 0;
};

}  // namespace

namespace {

bool ModelExists(const RlSpec& job) {
  std::error_code error;
  return !job.model_file.empty() && std::filesystem::exists(job.model_file, error);
}

}  // namespace

absl::StatusOr<RlReport> RunRl(const RlSpec& job, const RlRunOptions& options) {
  static std::once_flag one_thread;
  std::call_once(one_thread, worker::UseOneBlasThread);
  TANDEM_ASSIGN_OR_RETURN(const std::unique_ptr<Learner> learner, MakeLearner(job.learner));
  bool resumed = false, ended = false;
  if (options.resume) {
    TANDEM_ASSIGN_OR_RETURN(const std::string bytes, ReadCheckpoint(job));
    if (!bytes.empty()) {
      TANDEM_ASSIGN_OR_RETURN(const std::string why_ended,
                              RestoreCheckpoint(job, bytes, job.checkpoint_file, learner.get()));
      // Without the model the run died after its last checkpoint, and ends now.
      ended = !why_ended.empty();
      if (ended && options.refuse_finished && ModelExists(job)) {
        return Refusal(absl::StrCat("nothing to train: ", why_ended,
                                    "; raise it, or use the model: tandem rl eval ", job.model_file));
      }
      resumed = true;
    }
  }
  return RunLearner(job, options, learner.get(), resumed, ended);
}

absl::StatusOr<std::string> ReadCheckpoint(const RlSpec& job) {
  constexpr size_t kMaxBytes = size_t{1} << 34;
  absl::StatusOr<std::string> bytes = ReadFile(job.checkpoint_file, kMaxBytes);
  if (absl::IsNotFound(bytes.status()) && ModelExists(job)) {
    return Refusal(absl::StrCat(
        "--resume: there is no checkpoint '", job.checkpoint_file, "', but a model '", job.model_file,
        "', which a run from the beginning would replace; give the checkpoint "
        "with --set checkpoint.file=FILE, another place with --set name=NAME, or begin "
        "without --resume"));
  }
  if (absl::IsNotFound(bytes.status())) return std::string();
  TANDEM_RETURN_IF_ERROR(Annotate(bytes.status(), "the checkpoint"));
  return bytes;
}

absl::StatusOr<RlReport> RunLearner(const RlSpec& job, const RlRunOptions& options, Learner* learner,
                                    bool resumed, bool ended) {
  RlReport report{.job = job.name,
                  .environment = job.learner.environment.kind,
                  .algorithm = job.learner.algorithm.kind,
                  .seed = job.learner.seeds.environment};
  // Better now than after hours of training.
  if (!job.model_file.empty()) TANDEM_RETURN_IF_ERROR(Annotate(CheckWritable(job.model_file), "the model"));
  if (!job.checkpoint_file.empty())
    TANDEM_RETURN_IF_ERROR(Annotate(CheckWritable(job.checkpoint_file), "the checkpoint"));
  report.resumed_at = learner->env_steps();
  Follower follower(job, options, report.resumed_at);
  TANDEM_RETURN_IF_ERROR(follower.Open());
  if (!options.silent) {
    std::printf("%s: %s on %s for %llu steps, seed %llu\n", job.name.c_str(), report.algorithm.c_str(),
                report.environment.c_str(), static_cast<unsigned long long>(job.learner.env_steps),
                static_cast<unsigned long long>(report.seed));
    if (resumed) std::printf("resumed at step %llu\n", static_cast<unsigned long long>(learner->env_steps()));
    std::fflush(stdout);
  }
  // A failing disk must not end the training: the next checkpoint may succeed.
  const auto save = [&](std::optional<double> reached = std::nullopt) {
    if (job.checkpoint_file.empty()) return;
    const absl::Status saved = SaveCheckpoint(job, *learner, job.checkpoint_file, reached);
    if (!saved.ok()) LogWarning(absl::StrCat("no checkpoint was saved: ", saved.message()));
  };
  const auto tell = [&](const char* state) {
    if (options.status != nullptr) options.status->SetState(state);
  };
  tell("training");
  absl::Time last_saved = options.clock->Now();
  while (!ended && !learner->stopped() && learner->env_steps() < job.learner.env_steps) {
    if (options.stop != nullptr && options.stop->load()) {
      learner->RequestStop(/*interrupted=*/true);
      if (learner->stopped()) break;
    }
    report.failure = Annotate(learner->Advance(), absl::StrCat("job '", job.name, "'"));
    follower.Take(*learner);
    if (options.status != nullptr) options.status->SetStep(learner->env_steps());
    if (!report.failure.ok()) break;
    if (job.checkpoint_every > absl::ZeroDuration() &&
        options.clock->Now() - last_saved >= job.checkpoint_every) {
      save();
      last_saved = options.clock->Now();
    }
    if (follower.enough()) learner->RequestStop(/*interrupted=*/false);
  }
  report.interrupted = learner->interrupted();
  report.stopped_early =
      ended ? learner->env_steps() < job.learner.env_steps : learner->stopped() && !learner->interrupted();
  // Also at the end, so that --resume goes on if the job gets more steps.
  if (report.failure.ok() && !ended) {
    save(report.stopped_early ? std::optional<double>(follower.mean_return()) : std::nullopt);
  }
  if (report.failure.ok()) {
    // The parameters are complete, whether others hear of the end or not.
    const absl::Status finished = learner->Finish();
    if (!finished.ok()) LogWarning(absl::StrCat("job '", job.name, "': ", finished.message()));
  }
  follower.End(*learner);
  report.env_steps = learner->env_steps();
  report.updates = learner->updates();
  report.episodes = follower.episodes();
  report.seconds = follower.seconds();
  report.last_return = follower.mean_return();
  report.recent = follower.recent();
  for (const auto& [tag, value] : learner->figures()) report.figures.emplace_back(tag, value);
  report.lag = learner->lag();
  report.curve = follower.TakeCurve();
  report.parameters_hash = HashOf(learner->policy());
  if (!report.failure.ok()) return report;
  if (!job.model_file.empty()) {
    TANDEM_RETURN_IF_ERROR(SaveModel(job, learner->policy(), job.model_file));
    report.model_file = job.model_file;
  }
  if (report.interrupted || job.evaluation_episodes == 0) return report;
  tell("evaluating");
  TANDEM_ASSIGN_OR_RETURN(report.evaluation, Evaluate(learner->policy(), job.learner.environment,
                                                      static_cast<size_t>(job.evaluation_episodes),
                                                      job.learner.seeds.evaluation, options.stop));
  report.interrupted = report.evaluation.returns.empty();
  if (report.interrupted) return report;
  follower.Record(static_cast<int64_t>(report.env_steps), {{"evaluation/return", report.evaluation.mean}});
  return report;
}

}  // namespace tandem::rl

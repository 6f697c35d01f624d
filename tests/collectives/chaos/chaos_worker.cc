// SPDX-License-Identifier: Apache-2.0
// A worker of the chaos test: chaos_worker LOG_DIR LAST_STEP MILLISECONDS_A_STEP.
//
// Its model consists of the number of finished steps, and a sum to which every step adds a number that all
// ranks compute together. It writes whole lines: "round EPOCH RESUMED RANK WORLD" and "step EPOCH STEP RANK
// WORLD".

#include <fcntl.h>
#include <unistd.h>

#include <cstdint>
#include <string>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "absl/synchronization/mutex.h"
#include "absl/time/clock.h"
#include "base/logging.h"
#include "base/status.h"
#include "collectives/elastic/elastic_session.h"

namespace tandem::collectives {
namespace {

struct Model {
  int64_t steps = 0;
  int64_t sum = 0;  // of all steps' numbers
};

absl::Status Work(const std::string& directory, int64_t last_step, absl::Duration pause) {
  const std::string path = absl::StrCat(directory, "/worker-", ::getpid(), ".log");
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
  if (fd < 0) return absl::UnavailableError(absl::StrCat("cannot write ", path));
  const auto write = [&](const std::string& line) {
    (void)!::write(fd, line.data(), line.size());  // one call: a killed process leaves no half line
  };
  Model model;
  ElasticOptions options;
  options.save = [&] { return absl::StrCat(model.steps, " ", model.sum); };
  options.load = [&](absl::string_view text) -> absl::Status {
    const std::vector<std::string> parts = absl::StrSplit(text, ' ');
    if (parts.size() == 2 && absl::SimpleAtoi(parts[0], &model.steps) &&
        absl::SimpleAtoi(parts[1], &model.sum)) {
      return absl::OkStatus();
    }
    return absl::DataLossError(absl::StrCat("'", text, "' is no model"));
  };
  options.round_timeout = absl::Seconds(60);
  options.connect_timeout = absl::Seconds(20);
  options.group.timeout = absl::Seconds(20);
  TANDEM_ASSIGN_OR_RETURN(auto session, ElasticSession::Create(std::move(options)));
  return session->Run([&](ElasticRound& round) -> absl::Status {
    const std::string place = absl::StrCat(" ", round.rank(), " ", round.world_size(), "\n");
    write(absl::StrCat("round ", round.epoch(), " ", round.last_completed_step(), place));
    if (model.steps != round.last_completed_step() || model.sum != model.steps * (model.steps + 1) / 2) {
      return absl::DataLossError(absl::StrCat("the model has ", model.steps, " steps and the sum ", model.sum,
                                              ", the group is after step ", round.last_completed_step()));
    }
    for (int64_t step = round.last_completed_step() + 1; step <= last_step; ++step) {
      std::vector<double> values(1000, static_cast<double>(step) * (round.rank() + 1));
      TANDEM_RETURN_IF_ERROR(round.group()->AllReduce(absl::MakeSpan(values)).Wait());
      const int world = round.world_size();
      const auto total = static_cast<int64_t>(values[999]);
      if (total % (world * (world + 1) / 2) != 0) return absl::DataLossError("a wrong sum");
      model.sum += total / (world * (world + 1) / 2);
      ++model.steps;
      TANDEM_RETURN_IF_ERROR(round.CompleteStep(step));
      write(absl::StrCat("step ", round.epoch(), " ", step, place));
      absl::SleepFor(pause);  // what a step computes
    }
    return absl::OkStatus();
  });
}

int Main(int argc, char** argv) {
  int64_t last_step = 0;
  int milliseconds = 0;
  if (argc != 4 || !absl::SimpleAtoi(argv[2], &last_step) || !absl::SimpleAtoi(argv[3], &milliseconds))
    return 2;
  const absl::Status status = Work(argv[1], last_step, absl::Milliseconds(milliseconds));
  if (status.ok()) return 0;
  LogError(status.ToString());
  return 1;
}

}  // namespace
}  // namespace tandem::collectives

int main(int argc, char** argv) { return tandem::collectives::Main(argc, argv); }

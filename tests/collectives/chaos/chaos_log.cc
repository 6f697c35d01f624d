// SPDX-License-Identifier: Apache-2.0
#include "tests/collectives/chaos/chaos_log.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <set>
#include <sstream>
#include <system_error>
#include <utility>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"

namespace tandem::collectives {
namespace {

struct Line {
  std::string kind;
  int64_t epoch = 0, step = 0;
  int rank = 0, world_size = 0;
};

bool Parse(const std::string& text, Line* line) {
  std::istringstream in(text);
  return static_cast<bool>(in >> line->kind >> line->epoch >> line->step >> line->rank >> line->world_size);
}

struct Epoch {
  int64_t resumed = -1;
  int world_size = 0;
  std::map<int64_t, std::set<int>> steps;  // the ranks that have counted each
};

}  // namespace

void ChaosLog::Read() {
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(directory_, ignored)) {
    const std::string path = entry.path().string();
    if (entry.path().extension() != ".log") continue;
    std::ifstream file(path);
    file.seekg(offsets_[path]);
    std::stringstream more;
    more << file.rdbuf();
    std::string text = more.str();
    text.resize(text.rfind('\n') == text.npos ? 0 : text.rfind('\n') + 1);
    offsets_[path] += static_cast<int64_t>(text.size());
    for (const auto& part : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
      Line line;
      if (Parse(std::string(part), &line) && line.kind == "step" &&
          std::make_pair(line.epoch, line.step) > std::make_pair(latest_.epoch, latest_.step)) {
        latest_ = {line.epoch, line.step, line.world_size};
      }
    }
    texts_[path] += text;
  }
}

ChaosLog::Latest ChaosLog::ReadLatest() {
  Read();
  return latest_;
}

absl::Status ChaosLog::Check() {
  Read();
  std::map<int64_t, Epoch> epochs;
  std::map<int64_t, int64_t> epoch_of;  // of each step
  const auto wrong = [](const std::string& path, absl::string_view line, absl::string_view why) {
    return absl::InternalError(absl::StrCat(path, ": '", line, "': ", why));
  };
  for (const auto& [path, text] : texts_) {
    for (const absl::string_view part : absl::StrSplit(text, '\n', absl::SkipEmpty())) {
      Line line;
      if (!Parse(std::string(part), &line)) return wrong(path, part, "no line of a worker");
      Epoch& epoch = epochs[line.epoch];
      if (epoch.world_size == 0) epoch.world_size = line.world_size;
      if (epoch.world_size != line.world_size) return wrong(path, part, "another world size");
      if (line.kind == "round") {
        if (epoch.resumed >= 0 && epoch.resumed != line.step)
          return wrong(path, part, "resumed after another step");
        epoch.resumed = line.step;
        continue;
      }
      const auto [counted, first] = epoch_of.emplace(line.step, line.epoch);
      if (!first && counted->second != line.epoch) {
        return wrong(path, part, absl::StrCat("the step was counted in epoch ", counted->second, " already"));
      }
      if (!epoch.steps[line.step].insert(line.rank).second)
        return wrong(path, part, "counted twice for this rank");
    }
  }
  int64_t last = 0;  // counted so far
  for (const auto& [number, epoch] : epochs) {
    // The steps that all had done when a round ended count, even if no rank reported them.
    if (epoch.resumed < last || epoch.resumed > last + 1) {
      return absl::InternalError(
          absl::StrCat("epoch ", number, " resumed after step ", epoch.resumed, "; counted before: ", last));
    }
    last = epoch.resumed;
    for (const auto& [step, ranks] : epoch.steps) {
      if (step != last + 1) {
        return absl::InternalError(absl::StrCat("epoch ", number, " counted step ", step, " after ", last));
      }
      last = step;
    }
  }
  return absl::OkStatus();
}

}  // namespace tandem::collectives

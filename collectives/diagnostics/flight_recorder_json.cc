// SPDX-License-Identifier: Apache-2.0
// Formats a recorder's content as JSON.

#include <fcntl.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>
#include <system_error>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "base/logging.h"
#include "base/status.h"
#include "collectives/diagnostics/flight_recorder.h"
#include "collectives/diagnostics/recorder_entry.h"
#include "nlohmann/json.hpp"

namespace tandem::collectives {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kFormat = 1;

absl::string_view Name(Phase phase) {
  switch (phase) {
    case Phase::kQueued:
      return "queued";
    case Phase::kStarted:
      return "started";
    case Phase::kCompleted:
      return "completed";
    case Phase::kFailed:
      return "failed";
    case Phase::kEmpty:
    case Phase::kWriting:
      break;
  }
  return "unknown";
}

std::string HostName() {
  char name[256] = "";
  return ::gethostname(name, sizeof(name) - 1) == 0 ? name : "";
}

std::string Kernel() {
  utsname name{};
  return ::uname(&name) == 0 ? absl::StrCat(name.sysname, " ", name.release, " ", name.machine) : "";
}

// Names and errors come from users and peers; invalid UTF-8 is replaced.
std::string Write(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

Json CountersJson(const std::atomic<uint64_t>& issued, const std::atomic<uint64_t>& completed) {
  const auto last = [](const std::atomic<uint64_t>& counter) {
    return static_cast<int64_t>(counter.load(std::memory_order_relaxed)) - 1;
  };
  return {{"last_issued", last(issued)}, {"last_completed", last(completed)}};
}

absl::Status Failure(absl::string_view what, const std::string& path) {
  return absl::UnavailableError(absl::StrCat("cannot ", what, " '", path, "': ", std::strerror(errno)));
}

absl::Status WriteWhole(const std::string& path, absl::string_view text) {
  const int fd = ::open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) return Failure("create", path);
  absl::Status status;
  while (!text.empty()) {
    const ssize_t written = ::write(fd, text.data(), text.size());
    if (written < 0 && errno == EINTR) continue;
    if (written <= 0) {
      status = Failure("write", path);
      break;
    }
    text.remove_prefix(static_cast<size_t>(written));
  }
  if (::close(fd) != 0 && status.ok()) status = Failure("write", path);
  if (!status.ok()) ::unlink(path.c_str());
  return status;
}

}  // namespace

std::string FlightRecorder::ToJson(absl::string_view reason) const {
  const std::vector<Record> records = Records();
  const TickClock::Calibration time(clock_);
  const auto microseconds = [&](uint64_t ticks) { return absl::ToUnixMicros(time.WallTime(ticks)); };

  absl::MutexLock lock(&mutex_);
  Json header = {
      {"tandem_trace", kFormat},
      {"reason", std::string(reason)},
      {"dumped_at", absl::FormatTime(absl::RFC3339_full, time.now(), absl::UTCTimeZone())},
      {"dumped_unix_us", absl::ToUnixMicros(time.now())},
      {"rank", options_.rank},
      {"pid", static_cast<int64_t>(::getpid())},
      {"host", HostName()},
      {"versions", {{"tandem", TANDEM_VERSION}, {"compiler", __VERSION__}, {"kernel", Kernel()}}},
      {"clock", std::string(clock_.name())},
      {"ring_entries", options_.entries},
      {"not_recorded", not_recorded_.load(std::memory_order_relaxed)},
  };
  Json groups = Json::array();
  for (size_t number = 0; number < groups_.size(); ++number) {
    const Group& group = groups_[number];
    if (!group.used) continue;
    Json one = {{"number", number},
                {"name", group.name},
                {"backend", group.backend},
                {"rank", group.rank},
                {"global_ranks", group.global_ranks},
                {"closed", group.closed}};
    if (number < kGroupsWithProgress) {
      const Progress& p = progress_[number];
      one["collective"] = CountersJson(p.collective.issued, p.collective.completed);
      one["point_to_point"] = CountersJson(p.point_to_point.issued, p.point_to_point.completed);
    }
    groups.push_back(std::move(one));
  }
  header["groups"] = std::move(groups);

  std::vector<std::string> lines;
  lines.reserve(records.size());
  for (const Record& r : records) {
    const Fingerprint& f = r.fingerprint;
    Json entry = {
        {"id", r.id},
        {"group", r.group},
        {"group_name", GroupName(r.group)},
        {"sequence", f.sequence},
        {"point_to_point", IsPointToPoint(f.kind)},
        {"op", std::string(collectives::Name(f.kind))},
        {"dtype", std::string(tandem::Name(f.dtype))},
        {"reduce", std::string(collectives::Name(f.reduce))},
        {"count", f.count},
        {"even", f.even != 0},
        {"parts_hash", f.parts_hash},
        {IsPointToPoint(f.kind) ? "peer" : "root", f.root},
        {"tag", r.tag},
        {"device", r.device == Device::Kind::kCpu ? "cpu" : "cuda"},
        {"bytes_in", r.bytes_in},
        {"bytes_out", r.bytes_out},
        {"state", std::string(Name(r.phase))},
        {"issued_unix_us", microseconds(r.issued)},
    };
    if (r.started != 0) entry["started_unix_us"] = microseconds(r.started);
    if (r.ended != 0) entry["ended_unix_us"] = microseconds(r.ended);
    // The duration runs from the start (from the issue if the operation never started) to the end (to now if
    // it has not ended).
    const uint64_t from = r.started != 0 ? r.started : r.issued;
    entry["duration_us"] =
        absl::ToDoubleMicroseconds(r.ended != 0 ? time.Between(from, r.ended) : time.Since(from));
    if (r.timeout_ns != INT64_MAX) entry["timeout_ms"] = absl::ToDoubleMilliseconds(r.timeout());
    if (const auto error = errors_.find(r.id); error != errors_.end()) entry["error"] = error->second;
    entry["description"] = r.Description();
    lines.push_back(Write(entry));
  }
  const std::string head = Write(header);  // "{...}"
  return absl::StrCat(head.substr(0, head.size() - 1), ",\n\"entries\":[\n", absl::StrJoin(lines, ",\n"),
                      "\n]}\n");
}

absl::Status FlightRecorder::Dump(absl::string_view reason) const {
  if (options_.directory.empty()) return absl::OkStatus();
  absl::MutexLock lock(&dump_mutex_);
  absl::Status status = WriteDump(reason);
  if (!status.ok() && last_error_ != status.message()) {
    last_error_ = std::string(status.message());
    LogWarning(absl::StrCat("no trace of the last operations is written: ", last_error_));
  }
  return status;
}

absl::Status FlightRecorder::WriteDump(absl::string_view reason) const {
  const std::string& directory = options_.directory;
  std::error_code error;
  std::filesystem::create_directories(directory, error);
  if (error) {
    return absl::UnavailableError(
        absl::StrCat("cannot make the directory '", directory, "' (TANDEM_TRACE_DIR): ", error.message()));
  }
  const std::string path =
      absl::StrCat(directory, "/tandem-trace-rank", options_.rank, "-pid", ::getpid(), ".json");
  const std::string temporary = absl::StrCat(path, ".tmp");
  TANDEM_RETURN_IF_ERROR(WriteWhole(temporary, ToJson(reason)));
  if (::rename(temporary.c_str(), path.c_str()) != 0) {
    absl::Status status = Failure("rename to", path);
    ::unlink(temporary.c_str());
    return status;
  }
  return absl::OkStatus();
}

}  // namespace tandem::collectives

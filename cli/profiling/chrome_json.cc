// SPDX-License-Identifier: Apache-2.0
#include "cli/profiling/chrome_json.h"

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <fstream>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "absl/time/clock.h"
#include "base/ticks.h"
#include "cli/profiling/overlap.h"
#include "nlohmann/json.hpp"

namespace tandem::cli {
namespace {

using Json = nlohmann::ordered_json;

std::string Dump(const Json& json) { return json.dump(-1, ' ', false, Json::error_handler_t::replace); }

// Returns `ns` in microseconds, the format's unit. Perfetto multiplies the binary fraction by 1000 and
// truncates, which would turn 1.001 us into 1000 ns. An event could then end before an event within it, which
// Perfetto drops as misplaced. A quarter of a nanosecond is added, so that truncating and rounding both give
// `ns`.
std::string Microseconds(int64_t ns) {
  ns = std::max<int64_t>(ns, 0);
  return absl::StrFormat("%d.%03d25", ns / 1000, ns % 1000);
}

// An event, with its process and track.
struct Placed {
  const TimelineEvent* event;
  size_t process, track;
};

class Writer {
 public:
  explicit Writer(std::ofstream* out) : out_(out) {}

  void Begin() { *out_ << "{\"displayTimeUnit\":\"ms\",\"traceEvents\":["; }
  void Add(const std::string& event) {
    *out_ << (first_ ? "\n" : ",\n") << event;
    first_ = false;
  }
  void End(const Json& other) { *out_ << "\n],\"otherData\":" << Dump(other) << "}\n"; }

 private:
  std::ofstream* const out_;
  bool first_ = true;
};

std::string Metadata(const char* what, size_t pid, int64_t tid, const Json& arguments) {
  return Dump({{"ph", "M"}, {"name", what}, {"pid", pid}, {"tid", tid}, {"args", arguments}});
}

void AddNames(const Timeline& timeline, Writer* writer) {
  for (size_t p = 0; p < timeline.processes.size(); ++p) {
    const TimelineProcess& process = timeline.processes[p];
    const Member& member = process.from->member;
    const size_t pid = p + 1;
    writer->Add(
        Metadata("process_name", pid, 0,
                 {{"name", absl::StrCat(member.name, " (", member.host, ", pid ", member.pid, ")")}}));
    writer->Add(Metadata("process_sort_index", pid, 0, {{"sort_index", pid}}));
    for (size_t t = 0; t < process.tracks.size(); ++t) {
      const TimelineTrack& track = process.tracks[t];
      writer->Add(Metadata("thread_name", pid, track.id, {{"name", track.name}}));
      writer->Add(Metadata("thread_sort_index", pid, track.id, {{"sort_index", t}}));
    }
  }
}

std::string Complete(const TimelineEvent& event, const std::string& where) {
  std::string text =
      absl::StrCat("{\"ph\":\"X\",\"name\":", Dump(event.kind->name), ",\"cat\":", Dump(event.kind->category),
                   where, ",\"dur\":", Microseconds(event.end_ns - event.begin_ns));
  const std::vector<std::string>& names = event.kind->arguments;
  for (size_t i = 0; i < names.size(); ++i) {
    absl::StrAppend(&text, i == 0 ? ",\"args\":{" : ",", Dump(names[i]), ":", event.arguments[i]);
  }
  return absl::StrCat(text, names.empty() ? "}" : "}}");
}

Json OtherData(const Timeline& timeline, const std::vector<CollectedTrace>& collected) {
  Json missing = Json::array(), processes = Json::array(), overlaps = Json::array();
  for (const CollectedTrace& from : collected) {
    if (from.status.ok()) continue;
    missing.push_back({{"member", from.member.name},
                       {"host", from.member.host},
                       {"pid", from.member.pid},
                       {"why", from.status.ToString()}});
  }
  for (const TimelineProcess& process : timeline.processes) {
    processes.push_back({{"member", process.from->member.name},
                         {"lost_events", process.lost},
                         {"unplaced_events", process.from->trace.unplaced},
                         {"clock", process.from->own_clock ? "shared" : "estimated"},
                         {"clock_error_us", static_cast<double>(process.from->clock.error()) / 1e3}});
  }
  for (const Overlap& o : MeasureOverlap(timeline)) {
    overlaps.push_back({{"member", o.member},
                        {"compute_s", o.compute},
                        {"pull_s", o.pull.seconds},
                        {"pull_hidden_s", o.pull.hidden},
                        {"push_s", o.push.seconds},
                        {"push_hidden_s", o.push.hidden},
                        {"collective_s", o.all_reduce.seconds},
                        {"collective_hidden_s", o.all_reduce.hidden},
                        {"collective_beside_backward_s", o.all_reduce_backward.hidden},
                        {"collective_beside_traffic_s", o.all_reduce_traffic.hidden}});
  }
  const absl::Time begin = absl::Now() - absl::Nanoseconds(SteadyNanoseconds() - timeline.begin_ns);
  return {{"begin_unix_us", absl::ToUnixMicros(begin)},
          {"clock_error_us", static_cast<double>(timeline.error_ns) / 1e3},
          {"joined_calls", timeline.joined},
          {"unjoined_halves", timeline.unjoined},
          {"processes", processes},
          {"missing", missing},
          {"overlap", overlaps}};
}

}  // namespace

absl::Status WriteChromeJson(const std::string& path, const Timeline& timeline,
                             const std::vector<CollectedTrace>& collected) {
  const std::string unfinished = absl::StrCat(path, ".tmp");
  std::ofstream out(unfinished, std::ios::trunc);
  Writer writer(&out);
  writer.Begin();
  AddNames(timeline, &writer);
  std::vector<Placed> placed;
  for (size_t p = 0; p < timeline.processes.size(); ++p) {
    const std::vector<TimelineTrack>& tracks = timeline.processes[p].tracks;
    for (size_t t = 0; t < tracks.size(); ++t) {
      for (const TimelineEvent& event : tracks[t].events) placed.push_back({&event, p, t});
    }
  }
  std::stable_sort(placed.begin(), placed.end(),
                   [](const Placed& a, const Placed& b) { return a.event->begin_ns < b.event->begin_ns; });
  for (const auto& [event, p, t] : placed) {
    const int64_t tid = timeline.processes[p].tracks[t].id;
    const std::string where =
        absl::StrCat(",\"pid\":", p + 1, ",\"tid\":", tid, ",\"ts\":", Microseconds(event->begin_ns));
    writer.Add(Complete(*event, where));
    if (event->flow == 0) continue;
    // Perfetto binds it to the event that encloses it, which is the one just written.
    writer.Add(absl::StrCat("{\"ph\":\"", event->sends ? "s" : "f\",\"bp\":\"e",
                            "\",\"name\":\"call\",\"cat\":\"flow\",\"id\":", event->flow, where, "}"));
  }
  writer.End(OtherData(timeline, collected));
  out.close();
  if (out && std::rename(unfinished.c_str(), path.c_str()) == 0) return absl::OkStatus();
  const absl::Status status = absl::ErrnoToStatus(errno, absl::StrCat("cannot write ", path));
  std::remove(unfinished.c_str());
  return status;
}

}  // namespace tandem::cli

// SPDX-License-Identifier: Apache-2.0
#include "tests/cli/profiling/trace_checker.h"

#include <cmath>
#include <cstdint>
#include <map>
#include <set>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tandem::cli::testing {
namespace {

using Json = nlohmann::json;
using Thread = std::pair<int64_t, int64_t>;  // process, thread

// Converts a time as Perfetto's importer does (CoerceToTs), which drops events that overlap after the
// conversion.
int64_t Nanoseconds(const Json& microseconds) {
  return static_cast<int64_t>(microseconds.get<double>() * 1000.0);
}

class Checker {
 public:
  std::vector<std::string> Check(const Json& trace) {
    if (!trace.is_object() || !trace.contains("traceEvents") || !trace["traceEvents"].is_array()) {
      return {"it is no object with an array traceEvents"};
    }
    for (const Json& event : trace["traceEvents"]) CheckEvent(event);
    for (const auto& [thread, events] : complete_) {
      if (threads_.count(thread) == 0) Say("thread without a name: ", thread.first, "/", thread.second);
      if (processes_.count(thread.first) == 0) Say("process without a name: ", thread.first);
      CheckNesting(thread, events);
    }
    for (const auto& [id, ends] : flows_) {
      if (ends.first != 1 || ends.second != 1)
        Say("flow ", id, " has ", ends.first, " beginnings, ", ends.second, " ends");
    }
    return problems_;
  }

 private:
  template <typename... Parts>
  void Say(const Parts&... parts) {
    if (problems_.size() < 20) problems_.push_back(absl::StrCat(parts...));
  }

  void CheckEvent(const Json& event) {
    if (!event.is_object() || !event.contains("ph") || !event["ph"].is_string())
      return Say("no event: ", event.dump());
    for (const char* field : {"pid", "tid"}) {
      if (!event.contains(field) || !event[field].is_number_integer())
        return Say("no ", field, ": ", event.dump());
    }
    if (!event.contains("name") || !event["name"].is_string() || event["name"] == "") {
      return Say("no name: ", event.dump());
    }
    const std::string phase = event["ph"];
    const Thread thread{event["pid"], event["tid"]};
    if (phase == "M") return CheckName(event, thread);
    if (phase != "X" && phase != "s" && phase != "f") return Say("unknown phase: ", event.dump());
    if (!event.contains("ts") || !event["ts"].is_number() || event["ts"] < 0)
      return Say("no time: ", event.dump());
    if (!event.contains("cat") || !event["cat"].is_string()) return Say("no category: ", event.dump());
    for (const char* field : {"ts", "dur"}) {  // other programs round
      if (event.contains(field) &&
          std::llround(event[field].get<double>() * 1000) != Nanoseconds(event[field]))
        Say("one nanosecond or another: ", event.dump());
    }
    const int64_t time = Nanoseconds(event["ts"]);
    if (time < last_time_) Say("earlier than the one before it: ", event.dump());
    last_time_ = time;
    if (phase == "X") {
      if (!event.contains("dur") || !event["dur"].is_number() || event["dur"] < 0)
        return Say("no duration: ", event.dump());
      if (event.contains("args") && !event["args"].is_object()) Say("args are no object: ", event.dump());
      complete_[thread].emplace_back(time, time + Nanoseconds(event["dur"]));
      return;
    }
    if (!event.contains("id")) return Say("flow without an id: ", event.dump());
    if (phase == "f" && event.value("bp", "") != "e")
      Say("a flow ends at the event that encloses it: ", event.dump());
    const auto& events = complete_[thread];
    if (events.empty() || events.back().first != time) Say("flow at no event: ", event.dump());
    auto& [begins, ends] = flows_[event["id"].dump()];
    ++(phase == "s" ? begins : ends);
  }

  void CheckName(const Json& event, const Thread& thread) {
    const std::string what = event["name"];
    if (!event.contains("args") || !event["args"].is_object()) return Say("no args: ", event.dump());
    if (what == "process_name" || what == "thread_name") {
      if (event["args"].value("name", "").empty()) Say("an empty name: ", event.dump());
      const bool first =
          what == "process_name" ? processes_.insert(thread.first).second : threads_.insert(thread).second;
      if (!first) Say("named twice: ", event.dump());
    } else if (what != "process_sort_index" && what != "thread_sort_index") {
      Say("unknown metadata: ", event.dump());
    }
  }

  void CheckNesting(const Thread& thread, const std::vector<std::pair<int64_t, int64_t>>& events) {
    std::vector<int64_t> open;
    for (const auto& [begin, end] : events) {
      while (!open.empty() && open.back() <= begin) open.pop_back();
      if (!open.empty() && end > open.back()) {
        Say("events of thread ", thread.first, "/", thread.second, " overlap at ", begin);
      }
      open.push_back(end);
    }
  }

  std::vector<std::string> problems_;
  int64_t last_time_ = 0;
  std::set<int64_t> processes_;
  std::set<Thread> threads_;
  std::map<Thread, std::vector<std::pair<int64_t, int64_t>>> complete_;
  std::map<std::string, std::pair<int, int>> flows_;
};

}  // namespace

std::vector<std::string> CheckTrace(const Json& trace) { return Checker().Check(trace); }

std::vector<Json> EventsNamed(const Json& trace, const std::string& name) {
  std::vector<Json> events;
  for (const Json& event : trace["traceEvents"]) {
    if (event["ph"] == "X" && event["name"] == name) events.push_back(event);
  }
  return events;
}

}  // namespace tandem::cli::testing

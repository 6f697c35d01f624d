// SPDX-License-Identifier: Apache-2.0
#include "rpc/diagnostics/trace_codec.h"

#include <limits>
#include <utility>

#include "absl/container/flat_hash_map.h"
#include "absl/strings/str_cat.h"

namespace tandem::rpc {
namespace {

// A quarter of the range (73 years), so that adding to a time later cannot overflow.
constexpr int64_t kLatest = std::numeric_limits<int64_t>::max() / 4;

bool IsTime(int64_t ns) { return ns >= -kLatest && ns <= kLatest; }

absl::Status Broken(absl::string_view what) {
  return absl::DataLossError(absl::StrCat("the process sent a broken trace: ", what));
}

}  // namespace

tandem::v1::TraceRecording EncodeTrace(const trace::Recording& recording, int64_t skew_ns) {
  tandem::v1::TraceRecording out;
  out.set_from_ns(recording.from_ns + skew_ns);
  out.set_to_ns(recording.to_ns + skew_ns);
  out.set_unplaced(recording.unplaced);
  absl::flat_hash_map<const trace::Kind*, uint32_t> kinds;
  for (const trace::ThreadEvents& thread : recording.threads) {
    tandem::v1::TraceThread* const to = out.add_threads();
    to->set_id(thread.id);
    to->set_name(thread.name);
    to->set_lost(thread.lost);
    int64_t last = recording.from_ns;
    for (const trace::Event& event : thread.events) {
      const auto [found, added] = kinds.emplace(event.kind, out.kinds_size());
      if (added) {
        tandem::v1::TraceKind* const kind = out.add_kinds();
        kind->set_name(event.kind->name);
        kind->set_category(event.kind->category);
        kind->set_beside(event.kind->may_overlap);
        for (const char* argument : event.kind->arguments) {
          if (argument != nullptr) kind->add_arguments(argument);
        }
      }
      to->add_kind(found->second);
      to->add_end_delta(event.end_ns - last);
      last = event.end_ns;
      to->add_duration_ns(static_cast<uint64_t>(event.end_ns - event.begin_ns));
      to->add_flow(event.flow.id);
      to->add_flow_end(static_cast<uint32_t>(event.flow.end));
      for (const int64_t argument : event.arguments) to->add_arguments(argument);
    }
  }
  return out;
}

absl::StatusOr<ProcessTrace> DecodeTrace(const tandem::v1::TraceRecording& recording) {
  ProcessTrace trace;
  trace.from_ns = recording.from_ns();
  trace.to_ns = recording.to_ns();
  trace.unplaced = recording.unplaced();
  if (!IsTime(trace.from_ns) || !IsTime(trace.to_ns)) return Broken("it is of no time");
  for (const tandem::v1::TraceKind& kind : recording.kinds()) {
    if (kind.arguments_size() > 3) return Broken("a kind has more than 3 arguments");
    trace.kinds.push_back(
        {kind.name(), kind.category(), {kind.arguments().begin(), kind.arguments().end()}, kind.beside()});
  }
  for (const tandem::v1::TraceThread& from : recording.threads()) {
    const int count = from.kind_size();
    if (from.end_delta_size() != count || from.duration_ns_size() != count || from.flow_size() != count ||
        from.flow_end_size() != count || from.arguments_size() != static_cast<int64_t>(count) * 3) {
      return Broken(absl::StrCat("the lists of thread ", from.id(), " differ in length"));
    }
    ProcessTrace::Thread& thread = trace.threads.emplace_back();
    thread.id = from.id();
    thread.name = from.name();
    thread.lost = from.lost();
    thread.events.reserve(static_cast<size_t>(count));
    int64_t end = trace.from_ns;
    for (int i = 0; i < count; ++i) {
      ProcessTrace::Event event;
      event.kind = from.kind(i);
      if (event.kind >= trace.kinds.size()) return Broken(absl::StrCat("there is no kind ", event.kind));
      if (!IsTime(from.end_delta(i)) || !IsTime(end + from.end_delta(i)) ||
          from.duration_ns(i) > static_cast<uint64_t>(kLatest)) {
        return Broken("an event is of no time");
      }
      end += from.end_delta(i);
      event.end_ns = end;
      event.begin_ns = end - static_cast<int64_t>(from.duration_ns(i));
      if (from.flow_end(i) > 2) return Broken("an event has an unknown kind of flow");
      event.flow = {from.flow(i), static_cast<trace::Flow::End>(from.flow_end(i))};
      for (int a = 0; a < 3; ++a) event.arguments[static_cast<size_t>(a)] = from.arguments(3 * i + a);
      thread.events.push_back(event);
    }
  }
  return trace;
}

}  // namespace tandem::rpc

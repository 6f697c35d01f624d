// SPDX-License-Identifier: Apache-2.0
#include "cli/profiling/timeline.h"

#include <algorithm>
#include <limits>
#include <map>
#include <unordered_map>
#include <utility>

#include "absl/strings/str_cat.h"

namespace tandem::cli {
namespace {

constexpr int64_t kFirstLane = 1'000'000'000;  // above the kernel's thread ids
constexpr size_t kMaxLanes = 256;              // tracks for concurrent events of one kind

// One half of a call, and the clock error of its process.
struct Half {
  TimelineEvent* event;
  int64_t error_ns;
};

bool OuterFirst(const TimelineEvent& a, const TimelineEvent& b) {
  return a.begin_ns != b.begin_ns ? a.begin_ns < b.begin_ns : a.end_ns > b.end_ns;
}

// Removes from `events`, which are sorted, and returns those that overlap an earlier one without lying within
// it.
std::vector<TimelineEvent> TakeMisfits(std::vector<TimelineEvent>* events) {
  std::vector<TimelineEvent> fits, misfits;
  std::vector<int64_t> open;  // the ends of the events in progress, the outermost first
  for (TimelineEvent& event : *events) {
    while (!open.empty() && open.back() <= event.begin_ns) open.pop_back();
    if (!open.empty() && event.end_ns > open.back()) {
      misfits.push_back(event);
      continue;
    }
    open.push_back(event.end_ns);
    fits.push_back(event);
  }
  *events = std::move(fits);
  return misfits;
}

// Distributes events that overlap over tracks on which they do not: each event goes to the first free track.
void AddLanes(const std::string& name, std::vector<TimelineEvent> events, int64_t* next_id,
              TimelineProcess* process) {
  std::sort(events.begin(), events.end(), OuterFirst);
  std::vector<TimelineTrack> lanes;
  for (const TimelineEvent& event : events) {
    const auto free = std::find_if(lanes.begin(), lanes.end(), [&](const TimelineTrack& lane) {
      return lane.events.back().end_ns <= event.begin_ns;
    });
    if (free != lanes.end()) {
      free->events.push_back(event);
    } else if (lanes.size() < kMaxLanes) {
      lanes.push_back({(*next_id)++, absl::StrCat(name, " ", lanes.size() + 1), {event}});
    } else {
      ++process->lost;
    }
  }
  std::move(lanes.begin(), lanes.end(), std::back_inserter(process->tracks));
}

std::string LaneName(const rpc::ProcessTrace::Kind& kind) {
  if (kind.category == "call") return "calls sent";
  if (kind.category == "serve") return "calls served";
  if (kind.category == "remote") return "functions called";
  if (kind.category == "queued function") return "functions queued";
  if (kind.category == "function") return "functions run";
  return kind.name;
}

TimelineProcess MakeProcess(const CollectedTrace& from, int64_t begin_ns) {
  TimelineProcess process{.from = &from};
  std::map<std::string, std::vector<TimelineEvent>> overlapping;
  for (const rpc::ProcessTrace::Thread& thread : from.trace.threads) {
    process.lost += thread.lost;
    TimelineTrack track{.id = thread.id, .name = thread.id == from.member.pid ? "main" : thread.name};
    if (track.name.empty()) track.name = "thread";
    for (const rpc::ProcessTrace::Event& event : thread.events) {
      const rpc::ProcessTrace::Kind& kind = from.trace.kinds[event.kind];
      TimelineEvent out{.kind = &kind, .arguments = event.arguments};
      out.begin_ns = from.clock.ToOurs(event.begin_ns) - begin_ns;
      out.end_ns = from.clock.ToOurs(event.end_ns) - begin_ns;
      out.flow = event.flow.end == trace::Flow::End::kNone ? 0 : event.flow.id;
      out.sends = event.flow.end == trace::Flow::End::kSends;
      (kind.may_overlap ? overlapping[LaneName(kind)] : track.events).push_back(out);
    }
    std::sort(track.events.begin(), track.events.end(), OuterFirst);
    for (TimelineEvent& misfit : TakeMisfits(&track.events)) overlapping[misfit.kind->name].push_back(misfit);
    if (!track.events.empty()) process.tracks.push_back(std::move(track));
  }
  int64_t next_id = kFirstLane;
  for (auto& [name, events] : overlapping) AddLanes(name, std::move(events), &next_id, &process);
  return process;
}

// Gives the two halves of each call a number that no other call has. Several calls may have the same recorded
// id (same method and content). A receiver then belongs to the first sender that encloses it and has no
// receiver yet.
void Join(Timeline* timeline) {
  struct Call {
    std::vector<Half> senders, receivers;
  };
  std::unordered_map<uint64_t, Call> calls;
  for (TimelineProcess& process : timeline->processes) {
    const int64_t error = process.from->clock.error();
    for (TimelineTrack& track : process.tracks) {
      for (TimelineEvent& event : track.events) {
        if (event.flow == 0) continue;
        Call& call = calls[event.flow];
        (event.sends ? call.senders : call.receivers).push_back({&event, error});
        event.flow = 0;
        ++timeline->unjoined;
      }
    }
  }
  const auto by_begin = [](const Half& a, const Half& b) { return a.event->begin_ns < b.event->begin_ns; };
  uint64_t next = 1;
  for (auto& [flow, call] : calls) {
    std::sort(call.senders.begin(), call.senders.end(), by_begin);
    std::sort(call.receivers.begin(), call.receivers.end(), by_begin);
    for (const Half& receiver : call.receivers) {
      for (const Half& sender : call.senders) {
        const int64_t slack = sender.error_ns + receiver.error_ns;
        if (sender.event->flow != 0 || sender.event->begin_ns > receiver.event->begin_ns + slack ||
            receiver.event->end_ns > sender.event->end_ns + slack) {
          continue;
        }
        sender.event->flow = receiver.event->flow = next++;
        ++timeline->joined;
        timeline->unjoined -= 2;
        break;
      }
    }
  }
}

}  // namespace

Timeline MakeTimeline(const std::vector<CollectedTrace>& collected) {
  Timeline timeline;
  int64_t first = std::numeric_limits<int64_t>::max();
  int64_t worst = 0, second_worst = 0;
  for (const CollectedTrace& from : collected) {
    if (!from.status.ok()) continue;
    first = std::min(first, from.clock.ToOurs(from.trace.from_ns));
    for (const auto& thread : from.trace.threads) {
      for (const auto& event : thread.events) first = std::min(first, from.clock.ToOurs(event.begin_ns));
    }
    const int64_t error = from.clock.error();
    second_worst = std::max(second_worst, std::min(worst, error));
    worst = std::max(worst, error);
  }
  timeline.begin_ns = first;
  timeline.error_ns = worst + second_worst;
  for (const CollectedTrace& from : collected) {
    if (from.status.ok()) timeline.processes.push_back(MakeProcess(from, first));
  }
  Join(&timeline);
  return timeline;
}

}  // namespace tandem::cli

// SPDX-License-Identifier: Apache-2.0
#include "cli/profiling/overlap.h"

#include <algorithm>
#include <functional>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"

namespace tandem::cli {
namespace {

using Kind = rpc::ProcessTrace::Kind;
using Intervals = std::vector<std::pair<int64_t, int64_t>>;

bool IsBackward(const Kind& kind) {
  return kind.category == "train" && (kind.name == "backward inputs" || kind.name == "backward parameters");
}

// Returns the intervals in which any event of the kinds that `counts` accepts is in progress, disjoint and
// sorted.
Intervals During(const TimelineProcess& process, const std::function<bool(const Kind&)>& counts) {
  Intervals all, merged;
  for (const TimelineTrack& track : process.tracks) {
    for (const TimelineEvent& event : track.events) {
      if (counts(*event.kind)) all.emplace_back(event.begin_ns, event.end_ns);
    }
  }
  std::sort(all.begin(), all.end());
  for (const auto& [begin, end] : all) {
    if (!merged.empty() && begin <= merged.back().second) {
      merged.back().second = std::max(merged.back().second, end);
    } else {
      merged.emplace_back(begin, end);
    }
  }
  return merged;
}

double Seconds(const Intervals& intervals) {
  int64_t sum = 0;
  for (const auto& [begin, end] : intervals) sum += end - begin;
  return static_cast<double>(sum) * 1e-9;
}

Overlap::Share ShareOf(const Intervals& of, const Intervals& in) {
  int64_t common = 0;
  for (size_t i = 0, j = 0; i < of.size() && j < in.size();) {
    const int64_t begin = std::max(of[i].first, in[j].first), end = std::min(of[i].second, in[j].second);
    common += std::max<int64_t>(0, end - begin);
    ++(of[i].second < in[j].second ? i : j);
  }
  return {Seconds(of), static_cast<double>(common) * 1e-9};
}

std::string Told(const char* what, const Overlap::Share& share) {
  if (share.seconds == 0) return absl::StrCat("no ", what);
  return absl::StrFormat("%s %.2f s, %.0f %% of it beside computation", what, share.seconds, share.percent());
}

}  // namespace

std::vector<Overlap> MeasureOverlap(const Timeline& timeline) {
  const auto named = [](const char* category, const char* name) {
    return [category, name](const Kind& kind) { return kind.category == category && kind.name == name; };
  };
  std::vector<Overlap> overlaps;
  for (const TimelineProcess& process : timeline.processes) {
    const Intervals compute = During(process, [](const Kind& kind) {
      return kind.category == "train" && (kind.name == "gather" || kind.name == "forward" ||
                                          IsBackward(kind) || kind.name == "optimizer");
    });
    if (compute.empty()) continue;
    const Intervals reduce = During(process, [](const Kind& kind) { return kind.category == "collective"; });
    const Intervals traffic = During(process, [](const Kind& kind) {
      return kind.category == "ps" && (kind.name == "pull" || kind.name == "push");
    });
    overlaps.push_back({.member = process.from->member.name,
                        .compute = Seconds(compute),
                        .pull = ShareOf(During(process, named("ps", "pull")), compute),
                        .push = ShareOf(During(process, named("ps", "push")), compute),
                        .all_reduce = ShareOf(reduce, compute),
                        .all_reduce_backward = ShareOf(reduce, During(process, IsBackward)),
                        .all_reduce_traffic = ShareOf(reduce, traffic)});
  }
  return overlaps;
}

std::string OverlapToText(const std::vector<Overlap>& overlaps) {
  std::string text;
  for (const Overlap& overlap : overlaps) {
    absl::StrAppendFormat(&text, "%s: computed for %.2f s; %s; %s; %s", overlap.member, overlap.compute,
                          Told("pulls", overlap.pull), Told("pushes", overlap.push),
                          Told("collectives", overlap.all_reduce));
    if (overlap.all_reduce.seconds > 0) {
      absl::StrAppendFormat(&text, ", %.0f %% beside the backward pass, %.0f %% beside pulls or pushes",
                            overlap.all_reduce_backward.percent(), overlap.all_reduce_traffic.percent());
    }
    text += '\n';
  }
  return text;
}

}  // namespace tandem::cli

// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_PS_FAILOVER_EXPLORER_H_
#define TANDEM_TESTS_PS_FAILOVER_EXPLORER_H_

// Visits every state that a world can reach, breadth first.

#include <algorithm>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "absl/container/flat_hash_map.h"
#include "absl/hash/hash.h"
#include "absl/strings/str_cat.h"
#include "base/clock.h"
#include "tests/ps/failover/world.h"

namespace tandem::ps::testing {

struct Exploration {
  uint64_t states = 0;
  uint64_t transitions = 0;
  size_t depth = 0;
  bool complete = false;  // all states were visited; false: a rule was violated, or `max_states` was reached
  std::string violation;  // the first one, and the events that lead to it
  double seconds = 0;
};

// States are told apart by a 64-bit hash of everything in them.
inline Exploration Explore(const World& start, uint64_t max_states) {
  struct Node {
    uint32_t parent;
    Event event;
  };
  Exploration result;
  const absl::Time begin = MonotonicNow();
  std::vector<Node> nodes = {{0, {}}};
  absl::flat_hash_map<uint64_t, uint32_t> visited = {{absl::HashOf(start), 0}};
  std::vector<std::pair<uint32_t, World>> layer, next;
  layer.emplace_back(0, start);
  std::vector<Event> events;
  const auto finish = [&] {
    result.states = nodes.size();
    result.seconds = absl::ToDoubleSeconds(MonotonicNow() - begin);
    return result;
  };
  if (!start.violation().empty()) {
    result.violation = start.violation();
    return finish();
  }
  while (!layer.empty()) {
    for (const auto& [parent, world] : layer) {
      events.clear();
      world.Enabled(&events);
      for (const Event& event : events) {
        ++result.transitions;
        World after = world;
        after.Apply(event);
        const auto index = static_cast<uint32_t>(nodes.size());
        if (!visited.try_emplace(absl::HashOf(after), index).second) continue;
        nodes.push_back({parent, event});
        if (!after.violation().empty()) {
          std::vector<std::string> path;
          for (uint32_t at = index; at != 0; at = nodes[at].parent) path.push_back(ToString(nodes[at].event));
          std::reverse(path.begin(), path.end());
          result.violation = absl::StrCat(after.violation(), " after");
          for (const std::string& step : path) absl::StrAppend(&result.violation, "\n  ", step);
          return finish();
        }
        next.emplace_back(index, std::move(after));
      }
      if (nodes.size() > max_states) return finish();
    }
    layer = std::move(next);
    next.clear();
    ++result.depth;
  }
  result.complete = true;
  return finish();
}

}  // namespace tandem::ps::testing

#endif  // TANDEM_TESTS_PS_FAILOVER_EXPLORER_H_

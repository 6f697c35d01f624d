// SPDX-License-Identifier: Apache-2.0
#include "launcher/silence_rules.h"

#include <set>
#include <utility>

namespace tandem::launcher {

void SilenceRules::BeginAnew(absl::Time now) {
  stalled_ = false;
  for (auto& [id, state] : states_) state.moved = now;
}

void SilenceRules::Update(absl::Time now, const std::vector<Beat>& beats) {
  std::set<int> running;
  for (const Beat& beat : beats) {
    running.insert(beat.id);
    State& state = states_[beat.id];
    state.role = beat.role;
    if (beat.count == state.count) continue;
    state.count = beat.count;
    state.joined = true;
    state.told = false;
    state.moved = now;
  }
  std::erase_if(states_, [&running](const auto& one) { return !running.contains(one.first); });
}

SilenceRules::Verdict SilenceRules::Look(absl::Time now, const std::vector<Beat>& beats,
                                         const std::function<Finding(int id)>& examine) {
  Verdict verdict;
  const bool late = last_look_ != absl::InfinitePast() && now - last_look_ > lease_ / 2;
  last_look_ = now;
  Update(now, beats);
  if (late) BeginAnew(now);

  std::vector<std::pair<int, State*>> silent;  // for half a lease or longer
  int joined = 0;
  bool some_lease_over = false;
  for (auto& [id, state] : states_) {
    if (state.ended != absl::InfiniteFuture()) {
      if (state.told || now - state.ended < lease_ || examine(id).exiting) continue;
      state.told = true;
      verdict.lost.push_back({id, now - state.moved});
      continue;
    }
    if (!state.joined) continue;
    ++joined;
    const absl::Duration silence = now - state.moved;
    if (silence < lease_ / 2) continue;
    const Finding finding = examine(id);
    if (!finding.joined) {
      state.joined = false;
      --joined;
    } else if (finding.exiting) {
      state.moved = now;
    } else if (finding.traced || finding.dumping) {
      // Its silence begins anew when that is over.
      if (!state.told) (finding.traced ? verdict.traced : verdict.dumping).push_back({id, silence});
      state.told = true;
      state.moved = now;
    } else {
      silent.emplace_back(id, &state);
      some_lease_over = some_lease_over || silence >= lease_;
    }
  }

  const int count = static_cast<int>(silent.size());
  const bool together = count >= 2 && 4 * count >= joined;
  if (together && (stalled_ || some_lease_over)) {
    if (!std::exchange(stalled_, true)) {
      verdict.stalled = count;
      verdict.joined = joined;
    }
    return verdict;
  }
  // Some go on already, and the others may be about to.
  if (stalled_) {
    BeginAnew(now);
    return verdict;
  }
  for (const auto& [id, state] : silent) {
    if (now - state->moved < lease_) continue;
    const auto last = last_end_.find(state->role);
    if (last != last_end_.end() && now - last->second < lease_) continue;
    last_end_[state->role] = now;
    state->ended = now;
    state->told = false;
    verdict.end.push_back({id, now - state->moved});
  }
  return verdict;
}

}  // namespace tandem::launcher

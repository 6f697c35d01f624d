// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_TESTS_CLI_PROFILING_TRACES_H_
#define TANDEM_TESTS_CLI_PROFILING_TRACES_H_

// Makes traces for tests.

#include <string>
#include <utility>
#include <vector>

#include "cli/profiling/collect.h"

namespace tandem::cli::testing {

// Builds the trace that a process might have sent.
class TraceBuilder {
 public:
  explicit TraceBuilder(const std::string& member) {
    collected_.member = {.name = member, .host = "node", .pid = 100};
    collected_.trace.from_ns = 0;
  }
  // Adds a thread. Add, Call and Serve add an event to the thread that was added last; a new kind is created.
  TraceBuilder& Thread(int64_t id, const std::string& name) {
    collected_.trace.threads.push_back({.id = id, .name = name});
    return *this;
  }
  TraceBuilder& Add(const std::string& category, const std::string& name, int64_t begin, int64_t end,
                    bool may_overlap = false, trace::Flow flow = {}) {
    auto& kinds = collected_.trace.kinds;
    uint32_t kind = 0;
    while (kind < kinds.size() && (kinds[kind].name != name || kinds[kind].category != category)) ++kind;
    if (kind == kinds.size()) kinds.push_back({name, category, {"bytes"}, may_overlap});
    collected_.trace.threads.back().events.push_back(
        {.kind = kind, .begin_ns = begin, .end_ns = end, .flow = flow, .arguments = {7, 0, 0}});
    return *this;
  }
  TraceBuilder& Call(uint64_t flow, int64_t begin, int64_t end) {
    return Add("call", "Pull", begin, end, true, {flow, trace::Flow::End::kSends});
  }
  TraceBuilder& Serve(uint64_t flow, int64_t begin, int64_t end) {
    return Add("serve", "Pull", begin, end, true, {flow, trace::Flow::End::kReceives});
  }
  // Sets the process's clock to be `offset` ahead of ours, with an error of at most `error`.
  TraceBuilder& Clock(int64_t offset, int64_t error) {
    ClockOffset clock;
    clock.Add(0, offset + error, offset + error, 2 * error);
    collected_.clock = ClockLine(clock, ClockOffset());
    return *this;
  }
  CollectedTrace Build() const { return collected_; }

 private:
  CollectedTrace collected_;
};

}  // namespace tandem::cli::testing

#endif  // TANDEM_TESTS_CLI_PROFILING_TRACES_H_

// SPDX-License-Identifier: Apache-2.0
#include "cli/profiling/collect.h"

#include <unistd.h>

#include <algorithm>
#include <functional>
#include <map>
#include <memory>
#include <thread>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/time/clock.h"
#include "base/status.h"
#include "base/ticks.h"
#include "rpc/channel.h"
#include "rpc/diagnostics/clock_name.h"
#include "tandem/v1/diagnostics.pb.h"

namespace tandem::cli {
namespace {

constexpr int kClockReadings = 12;
constexpr size_t kAtOnce = 64;  // processes that are called concurrently

// The state of one traced process.
struct Process {
  std::unique_ptr<rpc::Channel> channel;
  absl::Status status;
  ClockOffset before, after;
  std::string clock;
  rpc::ProcessTrace trace;
};

template <typename Response, typename Request>
absl::StatusOr<Response> Call(Process& process, const char* method, const Request& request,
                              absl::Duration timeout) {
  Response response;
  const absl::Status status =
      rpc::CallProto(*process.channel, absl::StrCat("/tandem.v1.Diagnostics/", method), request, &response,
                     {.timeout = timeout});
  if (!status.ok()) return status;
  return response;
}

absl::Status ReadClocks(Process& process, absl::Duration timeout, ClockOffset* offset) {
  for (int i = 0; i < kClockReadings; ++i) {
    const int64_t sent = SteadyNanoseconds();
    TANDEM_ASSIGN_OR_RETURN(
        const auto answer,
        (Call<tandem::v1::ReadClockResponse>(process, "ReadClock", tandem::v1::ReadClockRequest(), timeout)));
    offset->Add(sent, answer.received_ns(), answer.answered_ns(), SteadyNanoseconds());
    process.clock = answer.clock();
  }
  return absl::OkStatus();
}

// Calls `body` for each process on a thread of its own, so that a process that hangs does not delay the
// others.
void ForAll(std::vector<Process>& processes, const std::function<absl::Status(Process&)>& body) {
  for (size_t begin = 0; begin < processes.size(); begin += kAtOnce) {
    std::vector<std::thread> threads;
    for (size_t i = begin; i < std::min(processes.size(), begin + kAtOnce); ++i) {
      Process& process = processes[i];
      if (!process.status.ok()) continue;
      threads.emplace_back([&process, &body] { process.status = body(process); });
    }
    for (std::thread& thread : threads) thread.join();
  }
}

}  // namespace

std::vector<CollectedTrace> CollectTraces(const std::vector<Member>& members, const CollectOptions& options) {
  std::vector<CollectedTrace> collected;
  for (const Member& member : members) {
    if (!member.left) collected.emplace_back().member = member;
  }
  std::vector<Process> processes(collected.size());
  const std::string owner = absl::StrCat("tandem trace ", ::getpid(), " ", absl::GetCurrentTimeNanos());
  ForAll(processes, [&](Process& process) -> absl::Status {
    const Member& member = collected[static_cast<size_t>(&process - processes.data())].member;
    if (member.diagnostics.empty())
      return absl::UnimplementedError("it serves no diagnostics (an older version?)");
    TANDEM_ASSIGN_OR_RETURN(process.channel, rpc::ConnectGrpc(member.diagnostics));
    TANDEM_RETURN_IF_ERROR(ReadClocks(process, options.timeout, &process.before));
    tandem::v1::StartTraceRequest request;
    request.set_owner(owner);
    // The limit ends the recording if this program dies before it does.
    request.set_limit_ms(absl::ToInt64Milliseconds(options.length + 2 * options.timeout + absl::Seconds(10)));
    return Call<tandem::v1::StartTraceResponse>(process, "StartTrace", request, options.timeout).status();
  });
  const auto started = [](const Process& process) { return process.status.ok(); };
  if (std::any_of(processes.begin(), processes.end(), started)) absl::SleepFor(options.length);
  ForAll(processes, [&](Process& process) -> absl::Status {
    tandem::v1::StopTraceRequest request;
    request.set_owner(owner);
    request.set_max_events(options.max_events);
    TANDEM_ASSIGN_OR_RETURN(const auto recording, (Call<tandem::v1::TraceRecording>(
                                                      process, "StopTrace", request, options.timeout)));
    TANDEM_ASSIGN_OR_RETURN(process.trace, rpc::DecodeTrace(recording));
    (void)ReadClocks(process, options.timeout, &process.after);  // after an error, process.before suffices
    return absl::OkStatus();
  });

  // Processes with one clock share the best reading of it.
  std::map<std::string, const Process*> best;
  for (const Process& process : processes) {
    if (!process.status.ok()) continue;
    const Process*& so_far = best[process.clock];
    if (so_far == nullptr || process.before.error() < so_far->before.error()) so_far = &process;
  }
  const std::string own = rpc::ClockName();
  for (size_t i = 0; i < processes.size(); ++i) {
    Process& process = processes[i];
    collected[i].status = std::move(process.status);
    if (!collected[i].status.ok()) continue;
    collected[i].trace = std::move(process.trace);
    collected[i].own_clock = process.clock == own;
    if (collected[i].own_clock) continue;
    const Process& clock = *best[process.clock];
    collected[i].clock = ClockLine(clock.before, clock.after);
  }
  return collected;
}

}  // namespace tandem::cli

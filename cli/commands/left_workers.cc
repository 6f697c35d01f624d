// SPDX-License-Identifier: Apache-2.0
#include "cli/commands/left_workers.h"

#include <cstdint>
#include <set>
#include <utility>

#include "absl/strings/numbers.h"
#include "absl/strings/string_view.h"
#include "absl/strings/strip.h"
#include "absl/time/time.h"
#include "base/logging.h"
#include "tandem/v1/store.pb.h"

namespace tandem::cli {
namespace {

constexpr absl::Duration kLookEvery = absl::Seconds(1);
constexpr absl::Duration kAnswerWithin = absl::Seconds(5);

std::set<uint32_t> LeftOf(const tandem::v1::MembersResponse& members) {
  std::set<uint32_t> left;
  for (const tandem::v1::MemberInfo& member : members.members()) {
    absl::string_view name = member.last().member();
    uint32_t rank;
    if (member.last().leaving() && absl::ConsumePrefix(&name, "worker/") && absl::SimpleAtoi(name, &rank)) {
      left.insert(rank);
    }
  }
  return left;
}

}  // namespace

LeftWorkers::LeftWorkers(ps::ParameterServer* server, std::shared_ptr<rpc::Channel> store)
    : server_(server), store_(std::move(store)), thread_([this] { Run(); }) {}

LeftWorkers::~LeftWorkers() {
  stop_.Notify();
  thread_.join();
}

void LeftWorkers::Run() {
  bool waited = false, some_left = false;
  while (!stop_.WaitFor(kLookEvery)) {
    const bool waits = server_->waiting_calls() > 0;
    // Pulls that need a worker which has left do not wait, so that one who comes back is looked for.
    if ((waits && waited) || some_left) {
      tandem::v1::MembersResponse members;
      const absl::Status asked =
          rpc::CallProto(*store_, "/tandem.v1.Store/Members", tandem::v1::MembersRequest(), &members,
                         {.timeout = kAnswerWithin, .idempotent = true});
      // The deadlines of the calls that wait remain.
      if (asked.ok()) {
        const std::set<uint32_t> left = LeftOf(members);
        server_->SetWorkersThatLeft(left);
        some_left = !left.empty();
      } else {
        LogDebug(asked.message());
      }
    }
    waited = waits;
  }
}

}  // namespace tandem::cli

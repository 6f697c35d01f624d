// SPDX-License-Identifier: Apache-2.0
#ifndef TANDEM_PS_SERVER_SERVER_PARTS_H_
#define TANDEM_PS_SERVER_SERVER_PARTS_H_

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <string>

#include "absl/time/time.h"
#include "ps/server/request_handler.h"
#include "ps/server/row_states_service.h"
#include "ps/server/table/table_registry.h"
#include "ps/server/task_executor.h"

namespace tandem::ps {

// The parts of a server that hold what its clients have changed. Code that captures or restores this state
// gets them so. All must outlive that code.
struct ServerParts {
  TableRegistry* tables;
  RequestHandler* requests;
  RowStatesService* row_states;
  // Return, add to and replace the ranks that Register has given.
  std::function<std::map<std::string, uint32_t>()> registered;
  std::function<void(const std::string& name, uint32_t rank)> restore_registered;
  std::function<void()> clear_registered;
  // One thread; it also runs everything else that calls RequestHandler::BetweenPushes, but not the thread
  // that writes a begun checkpoint, which may pause pushes meanwhile.
  TaskExecutor* background;
  const std::atomic<bool>* stopping;
  std::function<absl::Time()> boot_time;  // ParameterServerOptions::boot_time
  // Makes checkpoints that are being saved give up, or lets later ones be saved.
  std::function<void(bool interrupted)> interrupt_checkpoints;
};

}  // namespace tandem::ps

#endif  // TANDEM_PS_SERVER_SERVER_PARTS_H_
